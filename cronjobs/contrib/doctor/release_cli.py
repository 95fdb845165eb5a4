"""``cronjobs doctor --release``: print the release checklist."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final, NoReturn

from cronjobs.clock import SYSTEM
from cronjobs.contrib.doctor.examine import CHECKS, ExaminedSite, examine
from cronjobs.contrib.doctor.patient import patient_of
from cronjobs.contrib.doctor.release import ReleaseFacts, ReleaseItem, checklist
from cronjobs.contrib.doctor.statements import delivered
from cronjobs.desk.cli.known_types import known_types, users_code
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.output import Times, safe, sentence, width, wrapped, write
from cronjobs.desk.insight import check_config
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.leftovers import rotations_of
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import coloured, json_text

COLOURS: Final = {"ok": "green", "to do": "red", "ask": "yellow"}
TEXT: Final = 600
# "cronjobs check" already makes these checks
BY_CHECK: Final = frozenset({"configuration", "handlers", "job types", "timeouts"})


def release(source: Source, as_json: bool) -> NoReturn:
    """Print the checklist and exit, with 1 if an item is to do. Raises ConfigError if no tick could use the file."""
    settings = load_settings(source, need_database=False)
    known = known_types(settings)
    with users_code():
        found = check_config.check(settings, known, file=str(settings.file), environ=os.environ, now=SYSTEM.now())
    with ExitStack() as open_things:
        patient = patient_of(source, open_things)
        examined = examine(patient, [check for check in CHECKS if check.name not in BY_CHECK])
        items = checklist(
            _facts(patient),
            [(check.name, check.about, diagnosis) for check, diagnosis in examined],
            [str(finding.problem) for finding in found.findings],
        )
    counts: Counter[str] = Counter(item.answer for item in items)
    if as_json:
        write([json_text({"ok": not counts["to do"], "items": [vars(item) for item in items], "counts": counts})])
    else:
        write(_lines(items, counts))
    leaving.leave(1 if counts["to do"] else 0, stuck=False)


def _facts(patient: ExaminedSite) -> ReleaseFacts:
    settings, wrong, channels, hosts = patient.config, None, None, 0
    if patient.database is not None and patient.tables:
        with patient.database.read() as connection:
            health = look(connection, settings, patient.types)
            channels = delivered(connection)
        times = Times(health.now, settings.timezone)
        # Leave out faults in the file, because other items of the checklist report them.
        wrong = [sentence(each, times) for each in judge(health, settings, but={"config"}) if each.alarm]
        hosts = len(health.ticks)
    rotations = [] if settings.log is None else [str(each) for each in rotations_of(settings.log)]
    return ReleaseFacts(settings, patient.types, wrong, channels, hosts, rotations)


def _lines(items: Sequence[ReleaseItem], counts: Counter[str]) -> Iterator[str]:
    """Yield the lines of all items: first the items to do, then the questions, then the items that are ok."""
    label = max(len(item.item) for item in items)
    indent = " " * (label + 2)
    for answer in ("to do", "ask", "ok"):
        for item in items:
            if item.answer != answer:
                continue
            said = item.text if item.text != "a machine cannot know" else item.about
            head, *rest = wrapped(safe(said, TEXT), width() - len(indent) - len(answer) - 2)
            yield f"{item.item:<{label}}  {coloured(answer, COLOURS[answer])}: {head}"
            yield from (indent + line for part in rest for line in wrapped(part, width() - len(indent)))
            if item.do:
                yield from (indent + line for line in wrapped(f"→ {safe(item.do, TEXT)}", width() - len(indent)))
    yield ""
    yield f"{counts['to do']} to do, {counts['ask']} to ask a person, {counts['ok']} ok"
