"""``cronjobs schedules …``: list the schedules; show one with its last occurrences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Final

import typer

from cronjobs.desk.cli.commands import Commands
from cronjobs.desk.cli.options import JsonOption, Source, schedule_names
from cronjobs.desk.cli.output import COLOURS, columns_of, labelled, table, width, wrapped, write
from cronjobs.desk.cli.project_database import snapshot
from cronjobs.desk.cli.status_json import run_object
from cronjobs.desk.insight.formatting import Times, on_the_clock, safe, status_word
from cronjobs.desk.insight.schedule_facts import last_runs, really_next
from cronjobs.desk.store import listing
from cronjobs.desk.store.schedule_runs import PRUNED, RunFacts
from cronjobs.engine.command.printing import coloured, json_text
from cronjobs.engine.config.settings import ScheduleSettings, Settings
from cronjobs.engine.crontime.zone_names import zone_exists
from cronjobs.engine.schedules.definition import definition as definition_of
from cronjobs.engine.schedules.planning import read
from cronjobs.engine.store import schedules
from cronjobs.engine.store.schedules import StoredSchedule
from cronjobs.errors import CronjobsError, Problem
from cronjobs.masking import hidden_json
from cronjobs.model import duration_text
from cronjobs.text import nearest

app = Commands("List schedules, or show one.")

LEDGER_SHOWN: Final = 20
NEXT_SHOWN: Final = 5

_STATES: Final = {
    "active": "",
    "retired": "no file defines the schedule any more: the schedule creates no jobs, but its history stays",
    "disabled": (
        "the schedule's entry in this file is invalid: the schedule creates no jobs here; "
        "a definition that is already in the database stays"
    ),
    "new": "the database does not have the schedule yet: the next tick will apply this file",
}


@app.command("list", epilog="For example: cronjobs schedules list")
def list_schedules(source: Source, as_json: JsonOption = False) -> None:
    """List the schedules by name: when they are due, their state, what comes next, how the last run went.

    The list comes from the database, which ticks keep up to date with the file. A "new" schedule is only in the file. A
    "disabled" schedule has an invalid entry in the file. --json prints an array with one object per schedule. The keys
    are the table's columns.
    """
    with snapshot(source) as (settings, connection, times):
        stored = schedules.all_schedules(connection)
        last = last_runs(connection, [schedule.id for schedule in stored])
        due = really_next(connection, {schedule.name: schedule.next_at for schedule in stored})
    listed = [_object(each, due[each.name], settings, times.now, last.get(each.id), 1) for each in stored]
    listed = sorted([*listed, *_only_in_file(stored, settings, times.now, 1)], key=lambda found: str(found["name"]))
    if as_json:
        write([json_text(listed)])
        return
    rows = [
        [
            safe(found["name"]),
            safe(timing_text(found["definition"])),
            safe(_value(found["definition"], "job")),
            found["state"],
            _due(found["next"][0], times) if found["next"] else "",
            _last_text(found["last"], times),
        ]
        for found in listed
    ]
    header = ["name", "timing", "job", "state", "next", "last"]
    write(table(rows, header, room=width(), at_most={0: max(16, width() // 5), 1: 18, 2: max(12, width() // 6)}))
    for found in listed:
        for problem in settings.problems_of(found["name"]) if found["state"] == "disabled" else ():
            write(wrapped(safe(problem, 600), width()))
    if not rows:
        typer.echo("no schedules in the database or the file", err=True)


@app.command(epilog="For example: cronjobs schedules show nightly-report")
def show(
    source: Source,
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=schedule_names, help="The schedule's name.")],
    as_json: JsonOption = False,
) -> None:
    """Show one schedule: its definition, its next 5 occurrences, and what became of its last occurrences.

    All times are in the schedule's time zone. --json prints one object, with the table's columns as keys, the next
    occurrences under "next", and the last 20 ledger rows under "ledger".
    """
    with snapshot(source) as (settings, connection, times):
        stored = schedules.all_schedules(connection)
        here = next((schedule for schedule in stored if schedule.name == name), None)
        rows = listing.ledger(connection, here.id, LEDGER_SHOWN) if here is not None else []
        due = really_next(connection, {here.name: here.next_at} if here is not None else {})
    ledger = [columns_of(row) for row in rows]
    if here is not None:
        found = _object(here, due[here.name], settings, times.now, None, NEXT_SHOWN)
    else:
        only = {found["name"]: found for found in _only_in_file(stored, settings, times.now, NEXT_SHOWN)}
        if name not in only:
            raise CronjobsError(unknown_schedule(name, [*(schedule.name for schedule in stored), *only]))
        found = only[name]
    del found["last"]
    zone = _value(found["definition"], "timezone")
    own = Times(times.now, zone) if isinstance(zone, str) and zone_exists(zone) else times
    in_force = [each for each in (here.pauses if here else ()) if each.until is None or each.until > times.now]
    as_text = [*_lines(found, own, settings.problems_of(name), in_force), "", *_ledger_lines(ledger, own)]
    write([json_text(found | {"ledger": ledger})] if as_json else as_text)


def _object(
    stored: StoredSchedule, due: datetime | None, settings: Settings, now: datetime, last: RunFacts | None, count: int
) -> dict[str, Any]:
    """Return the schedule's row with computed values: state, next occurrences, newest run.

    *due*: the first occurrence that no tick has settled, and that has not run early because of a wrong clock. It may be
    overdue.
    """
    if stored.status == "retired":
        state = "retired"
    elif stored.name in settings.disabled_schedules:
        state = "disabled"
    else:
        state = "paused" if stored.paused else "active"
    coming = []
    skips = [pause.until for pause in stored.pauses if pause.skip and (pause.until is None or pause.until > now)]
    if state in ("active", "paused") and None not in skips:
        # A pause does not skip an occurrence that is due exactly when the pause ends.
        after = max([now, *(until - timedelta(microseconds=1) for until in skips if until)])
        first = [due] if due is not None and (due > after or state == "active") else []
        coming = [*first, *_coming(stored.name, stored.definition, max([after, *first]), count - len(first))]
    row = {name: value for name, value in vars(stored).items() if name not in ("read_at", "pauses")}
    return row | {
        "definition": settings.shown_definition(row["definition"]),
        "state": state,
        "next": coming,
        "last": None if last is None else run_object(last),
    }


def _only_in_file(
    stored: Sequence[StoredSchedule], settings: Settings, now: datetime, count: int
) -> list[dict[str, Any]]:
    """Return the file's entries that are not in the database, because they are invalid or have not been applied yet."""
    known = {schedule.name for schedule in stored}
    empty = dict.fromkeys(("id", "fingerprint", "status", "seen_until", "next_at", "owed", "paused", "last"))
    found = []
    in_file = (settings.schedules.keys() | settings.disabled_schedules) - settings.disabled_renames.keys()
    for name in in_file - known:
        schedule = settings.schedules.get(name)
        written = definition_of(schedule) if schedule else {}
        coming = _coming(name, written, now, count) if schedule else []
        state = "new" if schedule else "disabled"
        shown = settings.shown_definition(written)
        found.append(empty | {"name": name, "definition": shown, "state": state, "next": coming})
    return found


def _coming(name: str, definition: Any, now: datetime, count: int) -> list[datetime]:
    """Return the next occurrences, or [] if this version cannot read the definition."""
    try:
        return list(islice(read(name, definition).when.after(now), count))
    except ValueError:
        return []


def _value(definition: Any, key: str) -> Any:
    return definition.get(key) if isinstance(definition, dict) else None


def timing_text(definition: Any) -> str:
    """Return the timing in the form that the file uses, such as "15 2 * * *" or "every 10m"."""
    every = _value(definition, "every_s")
    if isinstance(every, int | float):
        return f"every {duration_text(timedelta(seconds=every))}"
    return str(_value(definition, "cron") or "?")


def _due(at: datetime, times: Times) -> str:
    return f"due {times.ago(at)}" if at <= times.now else times.ago(at)


def _last_text(last: Mapping[str, Any] | None, times: Times) -> str:
    if last is None:
        return "none yet"
    became = PRUNED if last["outcome"] == PRUNED else status_word(last["outcome"])
    job = f" (job {last['job_id']})" if last["job_id"] is not None else ""
    return f"{times.ago(last['at'])}: {became}{job}"


def unknown_schedule(name: str, known: Sequence[str]) -> str:
    """Return the message for a name that no schedule has, not even a retired one."""
    near = nearest(name, known)
    hint = f"did you mean {safe(near, 80)}?" if near else "cronjobs schedules list"
    return f'there is no schedule "{safe(name, 80)}": {hint}'


def _lines(found: Mapping[str, Any], times: Times, problems: Sequence[Problem], pauses: Sequence[Any]) -> list[str]:
    state, definition, room = found["state"], found["definition"], width() - 11
    lines = [f"schedule {safe(found['name'])}  {coloured(state, COLOURS.get(state, 'green'))}"]
    remark = "; ".join(_pause_text(each, times) for each in pauses) if state == "paused" else _STATES[state]
    if state == "disabled":
        remark = ": ".join([remark, *map(str, problems)])
    lines += labelled("", wrapped(safe(remark, 600), room) if remark else [])
    zone = safe(_value(definition, "timezone"), 60)
    lines += labelled("timing", [f"{safe(timing_text(definition))}  ({zone})" if definition else "?"])
    lines += labelled("job", [safe(_value(definition, "job"))] if definition else [])
    lines += labelled("", _other_settings(definition))
    coming = [f"{times.clock(at)} {times.timezone}, {_due(at, times)}" for at in found["next"]]
    lines += labelled("next", coming or ["none"])
    if found["seen_until"] is not None:
        lines += labelled("settled", [f"every occurrence up to {times.both(found['seen_until'])} {times.timezone}"])
    return lines


def _pause_text(pause: Any, times: Times) -> str:
    """Return text such as "paused by ada: stocktaking (until 03:00:00; what comes due is skipped)"."""
    until = f"until {times.clock(pause.until)}" if pause.until else "until someone resumes it"
    return f"{pause.said} ({until}{'; what comes due is skipped' if pause.skip else ''})"


def _other_settings(definition: Any) -> list[str]:
    """Describe the other settings: catch-up and overlap always, the rest only if they differ from their defaults."""
    usual = definition_of(ScheduleSettings("", "")) | dict.fromkeys(("catch_up", "overlap"))
    lines = []
    for key, value in definition.items() if isinstance(definition, dict) else ():
        if key in ("cron", "every_s", "timezone", "job", "secret_keys") or value == usual.get(key):
            continue
        span = key.endswith("_s") and isinstance(value, int | float)
        text = duration_text(timedelta(seconds=value)) if span else hidden_json(value)
        lines.append(f"{safe(key.removesuffix('_s'), 60)}: {safe(text.strip(chr(34)))}")
    return lines


def _ledger_lines(ledger: Sequence[Mapping[str, Any]], times: Times) -> list[str]:
    if not ledger:
        return ["no occurrence yet"]
    rows = []
    for row in ledger:
        span = times.clock(row["last_for"])
        if row["count"] > 1:
            span = f"{times.clock(row['first_for'])} … {span} ({row['count']:,})"
        job = str(row["job_id"]) if row["job_id"] is not None else ""
        rows.append(
            [span, row["outcome"], job, row["job_status"] or "", safe(on_the_clock(row["reason"] or "", times))]
        )
    header = [f"occurrence ({times.timezone})", "outcome", ">job", "status", "reason"]
    return table(rows, header, room=width(), at_most={0: 60})
