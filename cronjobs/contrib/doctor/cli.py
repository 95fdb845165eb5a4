"""``cronjobs doctor``: check everything that the jobs depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Annotated, Final

import typer

from cronjobs.contrib.doctor.diagnosis import Diagnosis
from cronjobs.contrib.doctor.examine import Examination, examine
from cronjobs.contrib.doctor.patient import patient_of
from cronjobs.desk.cli.known_types import users_code
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.output import safe, width, wrapped, write
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import coloured, json_text

COLOURS: Final = {"ok": "green", "warning": "yellow", "problem": "red", "not applicable": "bright_black"}
TEXT: Final = 600  # print at most this many characters of a diagnosis


def doctor(
    source: Source,
    release: Annotated[
        bool, typer.Option("--release", help="The release checklist, with the questions that only a person can answer.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check everything around the jobs (file, handlers, database, cron, host), and print how to fix what is wrong.

    Each check is ok, a warning, a problem, or not applicable here. If the file or the database cannot be used, the
    checks that need it are not applicable, and the others still run. doctor leaves nothing behind: it removes the small
    file that it writes to the state folder. On PostgreSQL it creates temporary tables, which it rolls back.

    --release prints a checklist for a release. Run it on the host that will tick. It has these checks, the findings of
    "check" and "status", and questions that only a person can answer. Each item is ok, to do, or ask (a person).

    --json prints one object: ok, host, checks (an object per check: check, about, status, text, fix), counts. With
    --release, it has ok, items (item, about, answer, text, do), counts. The exit code is 1 if a check found a problem,
    or if an item is to do.
    """
    if release:
        from cronjobs.contrib.doctor.release_cli import release as checklist

        checklist(source, as_json)
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
    # leave() does not wait for threads that the user's modules started
    leaving.leave(1 if counts["problem"] else 0, stuck=False)


def _lines(found: Sequence[tuple[Examination, Diagnosis]], counts: Counter[str]) -> Iterator[str]:
    label = max(len(check.name) for check, _ in found)
    indent = " " * (label + 2)
    for check, diagnosis in found:
        word = coloured(diagnosis.status, COLOURS[diagnosis.status])
        head, *rest = wrapped(safe(diagnosis.text, TEXT), width() - len(indent) - len(diagnosis.status) - 2)
        yield f"{check.name:<{label}}  {word}: {head}"
        yield from (indent + line for part in rest for line in wrapped(part, width() - len(indent)))
        if diagnosis.fix:
            yield from (indent + line for line in wrapped(f"→ {safe(diagnosis.fix, TEXT)}", width() - len(indent)))
    said = [f"{counts[word]} {word if counts[word] == 1 or word == 'ok' else word + 's'}" for word in COUNTED]
    yield ""
    yield ", ".join(said)


COUNTED: Final = ("ok", "warning", "problem")
