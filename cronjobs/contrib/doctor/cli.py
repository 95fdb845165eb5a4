"""``cronjobs doctor``: check everything that the jobs depend on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Annotated, Final, NoReturn

import typer

from cronjobs.clock import SYSTEM
from cronjobs.contrib.doctor.diagnosis import Diagnosis
from cronjobs.contrib.doctor.examine import CHECKS, Examination, examine
from cronjobs.contrib.doctor.patient import ExaminedSite, patient_of
from cronjobs.contrib.doctor.release import FOR_A_PERSON, ReleaseFacts, ReleaseItem, checklist
from cronjobs.contrib.doctor.statements import delivered
from cronjobs.desk.cli.known_types import known_types, users_code
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.output import sentence, width, wrapped, write
from cronjobs.desk.insight import check_config
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.formatting import Times, safe
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.leftovers import rotations_of
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import coloured, json_text

COLOURS: Final = {
    "ok": "green",
    "warning": "yellow",
    "problem": "red",
    "not applicable": "bright_black",
    "to do": "red",
    "ask": "yellow",
}
COUNTED: Final = ("ok", "warning", "problem")
TEXT: Final = 600  # print at most this many characters of a diagnosis
# The release checklist leaves out these checks, because "cronjobs check" already makes them.
BY_CHECK: Final = frozenset({"configuration", "handlers", "job types", "timeouts"})


def doctor(
    source: Source,
    release: Annotated[
        bool,
        typer.Option(
            "--release", help="Print the release checklist, with the questions that only a person can answer."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check everything around the jobs (file, handlers, database, cron, host), and print how to fix what is wrong.

    Each check is ok, a warning, a problem, or not applicable here. If the file or the database cannot be used, the
    checks that need it are not applicable, and the others still run. doctor leaves nothing behind: it removes the small
    file that it writes to the state folder. On PostgreSQL it creates temporary tables, which it rolls back.

    --release prints a checklist for a release. Run doctor --release on the host that will tick. The checklist has these
    checks, the findings of "check" and "status", and questions that only a person can answer. Each item is ok, to do,
    or ask (a person).

    --json prints one object: ok, host, checks (an object per check: check, about, status, text, fix), counts. With
    --release, it has ok, items (item, about, answer, text, do), counts. The exit code is 1 if a check found a problem,
    or if an item is to do.
    """
    if release:
        _release(source, as_json)
    with ExitStack() as open_things:
        patient = patient_of(source, open_things)
        with users_code():
            found = examine(patient)
    counts: Counter[str] = Counter(diagnosis.status for _, diagnosis in found)
    if as_json:
        checks = [{"check": check.name, "about": check.about} | vars(diagnosis) for check, diagnosis in found]
        write([json_text({"ok": not counts["problem"], "host": patient.host, "checks": checks, "counts": counts})])
    else:
        write(_lines(found, counts))
    # leave() does not wait for threads that the user's modules have started.
    leaving.leave(1 if counts["problem"] else 0, stuck=False)


def _entry(name: str, label: int, word: str, text: str, fix: str | None) -> Iterator[str]:
    """Yield the lines of a check, or of a checklist item. *label* is the width of the column of names."""
    indent = " " * (label + 2)
    head, *rest = wrapped(safe(text, TEXT), width() - len(indent) - len(word) - 2)
    yield f"{name:<{label}}  {coloured(word, COLOURS[word])}: {head}"
    yield from (indent + line for part in rest for line in wrapped(part, width() - len(indent)))
    if fix:
        yield from (indent + line for line in wrapped(f"→ {safe(fix, TEXT)}", width() - len(indent)))


def _lines(found: Sequence[tuple[Examination, Diagnosis]], counts: Counter[str]) -> Iterator[str]:
    label = max(len(check.name) for check, _ in found)
    for check, diagnosis in found:
        yield from _entry(check.name, label, diagnosis.status, diagnosis.text, diagnosis.fix)
    said = [f"{counts[word]} {word if counts[word] == 1 or word == 'ok' else word + 's'}" for word in COUNTED]
    yield ""
    yield ", ".join(said)


# --- the release checklist --------------------------------------------------------------------------------------------


def _release(source: Source, as_json: bool) -> NoReturn:
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
        write(_item_lines(items, counts))
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


def _item_lines(items: Sequence[ReleaseItem], counts: Counter[str]) -> Iterator[str]:
    """Yield the lines of all items: to do first, then the questions, then ok."""
    label = max(len(item.item) for item in items)
    for answer in ("to do", "ask", "ok"):
        for item in items:
            if item.answer == answer:
                said = item.text if item.text != FOR_A_PERSON else item.about
                yield from _entry(item.item, label, answer, said, item.do)
    yield ""
    yield f"{counts['to do']} to do, {counts['ask']} to ask a person, {counts['ok']} ok"
