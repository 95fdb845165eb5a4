"""The drill's checks: pure functions, each of which makes a Check from the numbers that the drill counted."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from cronjobs.contrib.drill.plan import PASSES_BY_ITSELF, Mishap, Planned, numbers_of
from cronjobs.contrib.drill.server import ReceivedMail, Try

SLACK_S: Final = 1.0  # stopped work may run this many seconds longer than its timeout and grace
SHORTEST_PAUSE_S: Final = 0.8  # the handler's delay of 1 s, less the greatest jitter


class Form(StrEnum):
    """The ways in which the drill ends a tick mid-run."""

    SIGTERM = "sigterm"
    KILL = "kill"


@dataclass(frozen=True)
class Check:
    """The result of a check. ``said`` is a sentence for people, and ``figures`` holds the same facts for programs."""

    name: str
    held: bool
    said: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class InterruptedSends:
    """A tick that the drill ended mid-run, and what the tick left behind."""

    code: int
    took_s: float  # seconds from the signal to the tick's end
    mails: int
    waiting: int  # number of jobs that were still waiting
    leases: int
    unrecorded: int  # number of mails that were sent without a recorded effect


def restarted(form: Form, seen: InterruptedSends, grace_s: float) -> Check:
    """Check that the drill ended the tick mid-run, and that the tick left only what such a tick may leave."""
    in_midrun = seen.mails > 0 and seen.waiting > 0
    if form is Form.SIGTERM:
        clean = seen.code == 128 + signal.SIGTERM and not seen.leases and not seen.unrecorded
        held = in_midrun and clean and seen.took_s <= grace_s + SLACK_S
        how = f"SIGTERM mid-run: the tick ended with {seen.code} after {seen.took_s:.1f} s"
    else:
        # A kill in the middle of the work leaves a lease and an unrecorded mail. If either is missing, the kill came at
        # another moment, and proves nothing.
        held = in_midrun and seen.code == -signal.SIGKILL and seen.leases > 0 and seen.unrecorded > 0
        how = (
            "kill -9 mid-run, after the mail server accepted a mail and before the job recorded it: the tick exited "
            f"with {seen.code}"
        )
    said = (
        f"{how}; mails sent by then: {seen.mails}, not recorded: {seen.unrecorded}; jobs waiting: "
        f"{seen.waiting}, still leased: {seen.leases}"
    )
    return Check("restart", held, said, vars(seen) | {"took_s": round(seen.took_s, 2)})


@dataclass(frozen=True)
class Woken:
    """A runner that was frozen until its lease had expired: its jobs, and what it did after it woke."""

    held: int  # number of jobs that the runner had when it was frozen
    taken: int  # number of those jobs that other ticks took while the runner was frozen
    code: int
    changed: int  # number of rows that the runner changed after it woke
    mails: int  # number of mails that the runner sent after it woke


def woken(seen: Woken) -> Check:
    ended = signal.Signals(-seen.code).name if seen.code < 0 else str(seen.code)
    said = (
        f"a runner was frozen until its lease had expired, then resumed. Jobs that it held: {seen.held}; jobs that "
        f"other ticks took over meanwhile: {seen.taken}. After it resumed, it changed {seen.changed} rows, sent "
        f"{seen.mails} mails, and exited with {ended}"
    )
    held = seen.held > 0 and seen.taken == seen.held and not seen.changed and not seen.mails
    return Check("frozen", held, said, dict(vars(seen)))


@dataclass(frozen=True)
class Stopped:
    """Work that had to be stopped.

    The fields: how long it ran, how long it was allowed to run, whether its process is alive, and the job's status.
    """

    worked_s: float
    allowed_s: float
    alive: bool
    status: str


def timed_out(seen: Stopped) -> Check:
    said = (
        f"a job that hangs and ignores SIGTERM: it ran for {seen.worked_s:.1f} s of {seen.allowed_s:g} allowed, "
        f"its process is {'still there' if seen.alive else 'gone'}, the job is {seen.status}"
    )
    return Check("deadline", _is_stopped(seen, "dead"), said, vars(seen) | {"worked_s": round(seen.worked_s, 2)})


def cancelled(seen: Stopped, outlived_its_tick: bool) -> Check:
    said = (
        f"an operator cancelled a long job {'while no tick ran' if outlived_its_tick else 'after its process ended'}: "
        f"the job worked for {seen.worked_s:.1f} s after that ({seen.allowed_s:g} s allowed), its process is "
        f"{'still there' if seen.alive else 'gone'}, the job is {seen.status}"
    )
    figures = vars(seen) | {"worked_s": round(seen.worked_s, 2), "outlived_its_tick": outlived_its_tick}
    return Check("cancel", outlived_its_tick and _is_stopped(seen, "cancelled"), said, figures)


def _is_stopped(seen: Stopped, status: str) -> bool:
    return not seen.alive and seen.worked_s <= seen.allowed_s and seen.status == status


def retried(planned: Mapping[int, Planned], tries: Sequence[Try], apart: Collection[int]) -> Check:
    """Check that jobs with a temporary failure were retried after a delay, and only until they succeeded.

    Ignore the receipts in *apart*, whose runner died.
    """
    alone = numbers_of(planned, *PASSES_BY_ITSELF) - set(apart)
    of = {receipt: [each for each in tries if each.receipt == receipt] for receipt in sorted(alone)}
    pauses = [later.at - earlier.at for each in of.values() for earlier, later in pairwise(each)]
    wrong = [receipt for receipt, each in of.items() if len(each) != planned[receipt].times + 1 or each[-1].met]
    shortest = min(pauses, default=0.0)
    said = (
        f"failed temporarily, retried automatically: {len(of)}, after {len(pauses)} refusals in all; shortest pause "
        f"before the next try: {shortest:.1f} s" + (f"; not retried as planned: {_some(wrong)}" if wrong else "")
    )
    figures = {"receipts": len(of), "refused": len(pauses), "shortest_pause_s": round(shortest, 2), "wrong": wrong}
    return Check("retries", bool(of) and not wrong and shortest >= SHORTEST_PAUSE_S, said, figures)


@dataclass(frozen=True)
class Dead:
    """A dead job as ``jobs list`` shows it."""

    receipt: int
    error_type: str
    error: str


def listed(
    planned: Mapping[int, Planned], dead: Sequence[Dead], tries: Sequence[Try], lost: Counter[int], open_ends: int
) -> Check:
    """Check that exactly the jobs that need a person are dead, each after one try, and listed with the reason.

    *tries* holds all tries so far. *lost* counts, for each receipt, the attempts that died with their runner.
    *open_ends* is the number of effects that were begun and never recorded.
    """
    wrong_addresses = numbers_of(planned, Mishap.NO_SUCH_ADDRESS)
    refused = {each.receipt for each in dead if each.error_type == "GiveUp" and "550" in each.error}
    unknown = {each.receipt for each in dead if each.error_type == "EffectUnknown"}
    asked = Counter(each.receipt for each in tries if each.met is Mishap.NO_SUCH_ADDRESS)
    twice = sorted(receipt for receipt, times in asked.items() if times > 1 + lost[receipt])
    missing = sorted(wrong_addresses - refused - unknown)
    others = sorted({each.receipt for each in dead} - unknown - (refused & wrong_addresses))
    said = (
        f"each dead job is listed with its reason: {len(refused)} refused permanently (550) and not retried, "
        f"{len(unknown)} stopped because nobody knew whether the mail had been sent"
        + (f"; retried, but should not be: {_some(twice)}" if twice else "")
        + (f"; not listed: {_some(missing)}" if missing else "")
        + (f"; dead for another reason: {_some(others)}" if others else "")
    )
    unanswered = numbers_of(planned, Mishap.KEPT_UNANSWERED, Mishap.LOST_UNANSWERED)
    held = not (twice or missing or others) and unknown >= unanswered and len(unknown) == open_ends
    figures = {"refused": len(refused), "unknown": len(unknown), "tried_again": twice, "missing": missing}
    return Check("dead", held, said, figures | {"others": others})


@dataclass(frozen=True)
class SettledEffects:
    """What the operator settled and retried, and how many jobs are still dead after that."""

    found: int  # number of uncertain mails that are in the mailbox
    not_found: int
    retried: int  # number of jobs that the operator retried
    dead: int  # number of jobs that are still dead


def repaired(seen: SettledEffects) -> Check:
    said = (
        f"the operator corrected addresses. Effects settled as done (their mail was in the mailbox): {seen.found}, as "
        f"not done: {seen.not_found}; jobs retried: {seen.retried}, still dead after that: {seen.dead}"
    )
    return Check("repair", seen.retried > 0 and not seen.dead, said, dict(vars(seen)))


@dataclass(frozen=True)
class TickEnd:
    """The end of a tick that the drill did not interrupt."""

    code: int | None
    out: str
    err: str


def told(ticks: Sequence[TickEnd]) -> Check:
    """Check that a tick in which a job died reports the death and exits with 1, and that other ticks are silent.

    Ticks report deaths of the same cause only once an hour, so a later tick with exit code 1 may be silent.
    """
    deaths = [tick for tick in ticks if tick.code == 1 and " dead" in tick.err]
    after = ticks[ticks.index(deaths[0]) :] if deaths else []
    repeated = [tick for tick in after if tick.code == 1 and not tick.err]
    silent = [tick for tick in ticks if tick.code == 0 and not tick.err]
    wrong = [tick for tick in ticks if tick not in (*deaths, *repeated, *silent) or tick.out]
    said = f"cron's mail: ticks that reported deaths, with exit code 1: {len(deaths)}; silent, with 0: {len(silent)}"
    if repeated:
        said += f"; silent with exit code 1, because an earlier tick had reported the cause: {len(repeated)}"
    if wrong:
        said += (
            f"; other ticks: {len(wrong)}, the first with exit code {wrong[0].code}: "
            f"{' '.join((wrong[0].err + wrong[0].out).split())}"
        )
    figures = {
        "ticks": len(ticks),
        "told_deaths": len(deaths),
        "repeated": len(repeated),
        "silent": len(silent),
        "wrong": len(wrong),
    }
    return Check("told", not wrong and bool(deaths), said, figures)


def arrived(receipts: int, mailbox: Sequence[ReceivedMail], succeeded: int) -> Check:
    copies = Counter(mail.receipt for mail in mailbox)
    twice = sorted(receipt for receipt, count in copies.items() if count > 1)
    missing = sorted(set(range(1, receipts + 1)) - copies.keys())
    ids = len({mail.message_id for mail in mailbox})
    said = (
        f"mails in the mailbox: {len(mailbox)}; distinct receipts: {len(copies)} of {receipts}, distinct Message-IDs: "
        f"{ids}; twice: {_some(twice)}, missing: {_some(missing)}; jobs succeeded: {succeeded}"
    )
    figures = {"mails": len(mailbox), "distinct": len(copies), "message_ids": ids, "twice": twice, "missing": missing}
    held = len(mailbox) == len(copies) == ids == succeeded == receipts and not (twice or missing)
    return Check("receipts", held, said, figures | {"succeeded": succeeded})


def idle(tick: TickEnd) -> Check:
    said = f"a second idle tick: exit code {tick.code}, {len(tick.out)} bytes on stdout, {len(tick.err)} on stderr"
    figures = {"code": tick.code, "stdout": len(tick.out), "stderr": len(tick.err)}
    return Check("idle", tick.code == 0 and not tick.out and not tick.err, said, figures)


def left_behind(processes: Collection[int]) -> Check:
    said = f"processes of the drill still running: {len(processes)}"
    return Check("left", not processes, said, {"processes": len(processes)})


def stuck(why: str) -> Check:
    return Check("went through", held=False, said=f"the drill could not continue: {why}")


def _some(numbers: Sequence[int]) -> str:
    if not numbers:
        return "none"
    shown = ", ".join(map(str, numbers[:10]))
    return f"{len(numbers)} ({shown}{', …' if len(numbers) > 10 else ''})"
