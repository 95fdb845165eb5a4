"""Build the text of ``cronjobs status``, with a function for each part. No line is wider than the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from cronjobs.desk.cli.known_types import most_tries
from cronjobs.desk.cli.last_runs import legend, strip
from cronjobs.desk.cli.output import UNCUT, first, is_cut, labelled, sentence, table, width, wrapped
from cronjobs.desk.crontab.other_blocks import runs_twice
from cronjobs.desk.insight.all_well import ALL_WELL, without_finding
from cronjobs.desk.insight.causes import READ, Causes, cause_text
from cronjobs.desk.insight.findings import Finding, Severity, judge
from cronjobs.desk.insight.formatting import (
    Times,
    counted,
    did_and_ended,
    host_of,
    pace_lately,
    pause_text,
    safe,
    status_word,
    took,
    tries,
)
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.queue_trends import QueueTrends, trend_of
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.insight.schedule_facts import STRIP, ScheduleFacts
from cronjobs.desk.insight.waiting import entries_of
from cronjobs.engine.command.printing import coloured
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.tick.not_started import OUT_OF_TIME, in_words, why_it_must_fit
from cronjobs.model import rough

LABEL_WIDTH: Final = 11
NARROW: Final = 76  # below this width, the schedules table drops columns
COLOUR_OF: Final = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.NOTICE: "cyan"}
FINDINGS_SHOWN: Final = 8
CAUSES_SHOWN: Final = 10
TICKS_SHOWN: Final = 5


def head_lines(health: Health, settings: Settings, address: str, times: Times, *, everything: bool) -> list[str]:
    """Return the database's line and the findings."""
    found = judge(health, settings)
    room = (width() if is_cut() else UNCUT) - LABEL_WIDTH
    whose = [f"{name} {safe(value)}" for name in ("project", "environment") if (value := getattr(health, name))]
    lines = labelled("database", wrapped(safe(address), room))
    lines += labelled("", wrapped(", ".join([*whose, f"tables {health.schema_revision}"]), room))
    lines += labelled("now", [times.now_text])
    lines.append("")
    unknown = [each for each in found if each.ack is None]
    known = [each for each in found if each.ack is not None]
    most = len(found) if everything else FINDINGS_SHOWN
    if unknown:
        worst = COLOUR_OF[unknown[0].severity]
        lines += labelled("TROUBLE", _finding_lines(unknown, times, room, most), worst)
    elif known:
        lines += labelled("quiet", [coloured("only acknowledged findings", "green")], "green")
    else:
        verdict, text = without_finding(health, settings)
        colour = "green" if verdict == ALL_WELL else "yellow"
        lines += labelled(verdict, [coloured(line, colour) for line in wrapped(safe(text, 400), room)], colour)
    lines += labelled("acked", _finding_lines(known, times, room, most // 2), "bright_black")
    if found and (twice := runs_twice(settings)):
        lines += labelled("crontab", [coloured(line, "yellow") for line in wrapped(safe(twice, 400), room)], "yellow")
    lines.append("")
    return lines


def _finding_lines(found: Sequence[Finding], times: Times, room: int, most: int) -> list[str]:
    lines = []
    for each in found[:most]:
        text = f"- {each.severity} {safe(each.key, 60)}: {sentence(each, times)}"
        if each.ack is not None:
            text += f" - acknowledged by {safe(each.ack.by, 60) or 'somebody'} until {times.clock(each.ack.until)}"
            text += f": {safe(each.ack.why, 200)}" if each.ack.why else ""
        colour = COLOUR_OF[each.severity] if each.ack is None else "bright_black"
        lines += [coloured(line, colour) for line in wrapped(text, room, "  ")]
    if len(found) > most:
        lines.append(f"… and {len(found) - most} more (--all shows them)")
    return lines


def cause_lines(why: Causes, times: Times, *, everything: bool) -> list[str]:
    """Return a sentence for each cause of death, with the command that lists its jobs."""
    if not why.found:
        return []
    room = (width() if is_cut() else UNCUT) - LABEL_WIDTH
    shown = why.found if everything else why.found[:CAUSES_SHOWN]
    lines = []
    for cause in shown:
        text = f'{cause_text(cause, times)}: "cronjobs jobs list --cause {cause.key}"'
        lines += [coloured(line, "red") for line in wrapped(text, room, "  ")]
    if len(why.found) > len(shown):
        lines.append(f"… and {len(why.found) - len(shown):,} more (--all shows them)")
    if why.unread:
        lines += wrapped(f"These are the causes of the {READ:,} most recent deaths; more jobs are dead.", room)
    return [*labelled("causes", lines, "red"), ""]


# --- schedules --------------------------------------------------------------------------------------------------------


def schedule_lines(facts: Sequence[ScheduleFacts], active: int, times: Times) -> list[str]:
    """Return a line for each schedule, the strip's legend, and how many of the *active* schedules are left out."""
    if not facts:
        return [*labelled("schedules", ["none" if not active else f"{active:,}: --all"]), ""]
    all_columns = not is_cut() or width() >= NARROW
    count = STRIP if all_columns else STRIP // 2
    rows = [_schedule_row(each, times, count, all_columns=all_columns) for each in facts]
    # The last column must also fit the text of a late schedule, such as "due 2h45m ago", which is longer than the time
    # until the next run.
    coming = max(8, *(len(row[-1]) for row in rows))
    names = max(LABEL_WIDTH, width() - (57 if all_columns else 39) - coming) if is_cut() else UNCUT
    usual = [">usual"] if all_columns else []
    header = ["schedule", "last", ">ago", ">took", *usual, f"last {count}", "next in"]
    lines = table(rows, header, room=width(), at_most={0: names})
    shown = (outcome for each in facts for outcome in each.strip[-count:])
    if meaning := legend(shown):
        lines += [coloured(line, "bright_black") for line in wrapped(meaning, width())]
    if active > len(facts):
        lines.append(f"… and {active - len(facts):,} more (--all shows them)")
    return [*lines, ""]


def _schedule_row(facts: ScheduleFacts, times: Times, count: int, *, all_columns: bool) -> list[str]:
    last, running = facts.last, facts.running
    ran = last.took if last is not None else None
    usual = facts.median
    row = [
        safe(facts.name, 200),
        "running" if running else status_word(last.outcome) if last else "none yet",
        times.since(running.at) if running else times.since(last.at) if last else "",
        rough(ran) if ran is not None and not running else "",
    ]
    if all_columns:
        row.append(rough(usual) if usual is not None else "")
    if facts.paused:
        coming = "paused"
    elif facts.next_at is None:
        coming = "never" if facts.status == "active" else "unknown"
    else:
        coming = rough(facts.next_at - times.now) if facts.next_at > times.now else f"due {times.ago(facts.next_at)}"
    return [*row, strip(facts.strip, count), coming]


# --- the rest ---------------------------------------------------------------------------------------------------------


def work_lines(
    health: Health,
    settings: Settings,
    types: JobTypes,
    times: Times,
    trends: QueueTrends,
    unended: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Return the parts about running and waiting jobs, queues, deaths, pauses and hosts.

    *unended*: recent ticks that have not ended. A host may have several of them, even if its last tick has ended.
    """
    room = (width() if is_cut() else UNCUT) - LABEL_WIDTH
    lines = labelled("running", _running_lines(health, settings, types, times, room))
    lines += labelled("waiting", _waiting_lines(health, settings.run.every, times, room))
    lines += labelled("queues", _queue_lines(health, times, trends, room))
    lines += labelled("dead", [_dead_text(health)])
    pauses = first([pause_text(pause, times) for pause in health.pauses], 4)
    lines += labelled("paused", [line for pause in pauses for line in wrapped(pause, room, "  ")], "yellow")
    lines += labelled("ticks", _tick_lines(health, unended, times, room, settings.run.budget) or ["none yet"])
    return lines


def _dead_text(health: Health) -> str:
    total = health.dead["total"]
    if not total:
        return "none"
    return f"{total:,} in all, {health.dead['last_24h']:,} in the last 24 h{health.dismissed_words}"


def _tick_lines(
    health: Health, unended: Sequence[Mapping[str, Any]], times: Times, room: int, budget: timedelta
) -> list[str]:
    holders = Holders()
    last = health.ticks[:TICKS_SHOWN]
    ids, hosts = {tick["id"] for tick in last}, {tick["host"] for tick in last}
    beside = [tick for tick in unended if tick["id"] not in ids and tick["host"] in hosts]
    rows = [
        [
            safe(tick["host"]),
            times.ago(tick["started_at"]),
            took(tick["started_at"], tick["finished_at"]),
            safe(tick["version"]),
            safe(tick["fingerprint"])[:8],
            did_and_ended(tick, times.now, budget, gone=holders.tick_is_gone(tick)),
        ]
        for tick in sorted([*last, *beside], key=lambda tick: (tick["started_at"], tick["id"]), reverse=True)
    ]
    lines = table(rows, ["host", "began", ">took", "version", "file", "did"], room=room, at_most={0: 16, 3: 8})
    if len(health.ticks) > len(last):
        lines.append(f"… and {counted(len(health.ticks) - len(last), 'host')} more")
    return lines


def _running_lines(health: Health, settings: Settings, types: JobTypes, times: Times, room: int) -> list[str]:
    if not health.running_total:
        return ["nothing"]
    rows, holders = [], Holders()
    for job in health.running[:5]:
        most = most_tries(job["job_type"], job["max_attempts"], settings, types)
        over = (job["recorded"] or "").replace("_", " ")
        notes = [
            over,
            holders.lease(job, times),
            tries(job["failures"], most),
            "asked to stop" if job["cancel_requested_at"] else "",
        ]
        rows.append(
            [
                str(job["id"]),
                safe(job["job_type"]),
                host_of(job["locked_by"]),
                times.since(job["started_at"]) if job["started_at"] else "",
                ", ".join(note for note in notes if note),
            ]
        )
    lines = table(
        rows, [">id", "type", "host", ">for", ""], room=room, at_most={0: 12, 1: 28 if room >= 69 else 14, 2: 12}
    )
    if health.running_total > len(rows):
        more = f'… and {health.running_total - len(rows):,} more: "cronjobs jobs list --status running"'
        lines += wrapped(more, room)
    return lines


def _waiting_lines(health: Health, every: timedelta, times: Times, room: int) -> list[str]:
    due, future, late, failed = (health.waiting.total(what) for what in ("due", "future", "late", "failed"))
    if not due + future:
        return ["nothing", *_cap_lines(health, room)]
    parts = [f"{due:,} due", f"{future:,} in the future"]
    if failed:
        parts.append(f"{failed:,} of them retries")
    lines = wrapped(", ".join(parts), room)
    if health.waiting.oldest_due_at is not None:
        # The oldest due job need not be late: a job that waits for a limit, a pause or another job is not late.
        late_text = coloured(f"{late:,} late", "red") + "; " if late else ""
        lines.append(f"{late_text}the oldest {times.was_due(health.waiting.oldest_due_at)}")
    paused = [name for name, queue in health.waiting.queues.items() if queue.paused and queue.due]
    if paused:
        count = sum(health.waiting.queues[name].due for name in paused)
        lines += wrapped(f"{count:,} due in paused queues: {safe(', '.join(paused), 60)}", room)
    lines += _cap_lines(health, room)
    limited = first([_limited_text(health, limit, count) for limit, count in health.waiting.limited.items()], 4)
    no_time = first(_without_time(health, every), 4)
    return lines + [part for line in [*limited, *no_time] for part in wrapped(line, room, "  ")]


def _without_time(health: Health, every: timedelta) -> list[str]:
    """Return why the hosts' last ticks had no time left for due jobs: a line for each type and timeout."""
    said = {
        (safe(entry.get("job_type"), 60), str(entry.get("timeout_s"))): f"{words}{why_it_must_fit(entry)}"
        for tick in health.ticking(every)
        for entry in entries_of(tick)
        if entry.get("why") == OUT_OF_TIME and health.waiting.of(str(entry.get("queue"))).due
        if (words := in_words(entry)) is not None
    }
    return [f"{job_type}: {words}" for (job_type, _), words in said.items()]


def _limited_text(health: Health, limit: Limit, due: int) -> str:
    text, a_minute = f"{due:,} due: {safe(limit.reached, 120)}", health.waiting.limits_a_minute.get(limit)
    return f"{text}; {pace_lately(a_minute)}" if a_minute and limit.most != 0 else text


def _cap_lines(health: Health, room: int) -> list[str]:
    lines = []
    for name, queue in health.waiting.queues.items():
        parts = []
        if queue.max_waiting is not None:
            parts.append(f"{queue.waiting:,} of at most {queue.max_waiting:,} waiting (when full: {queue.on_full})")
        if queue.dropped:
            parts.append(f"{queue.dropped:,} dropped so far")
        if parts:
            text = wrapped(f"queue {safe(name, 40)}: {'; '.join(parts)}", room, "  ")
            lines += [coloured(line, "yellow" if queue.full else None) for line in text]
    return first(lines, 6)


def _queue_lines(health: Health, times: Times, trends: QueueTrends, room: int) -> list[str]:
    """Return the queues with due jobs, longest wait first."""
    due, rows = health.waiting.with_due_jobs(), []
    for oldest, name, queue in due[:5]:
        trend = "paused" if queue.paused else trend_of(queue.due, trends.changes.get(name), times.now - trends.since)
        rows.append([safe(name, 200), f"{queue.due:,}", rough(times.now - oldest), trend])
    lines = table(rows, ["queue", ">due", ">oldest", "trend"], room=room, at_most={0: 24 if room >= 69 else 10, 1: 11})
    lines += [f"… and {len(due) - 5:,} more with due jobs (--json shows them)"] if len(due) > 5 else []
    return lines + (
        [f"… and {counted(health.waiting.more_queues, 'smaller queue')}"] if health.waiting.more_queues else []
    )
