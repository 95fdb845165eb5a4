"""The drill's scenes: send receipts while runners are killed and frozen, then clean up as an operator."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cronjobs.clock import SYSTEM, sleep
from cronjobs.contrib.drill import checks
from cronjobs.contrib.drill import statements as store
from cronjobs.contrib.drill.checks import Check, Dead, Form, InterruptedSends, SettledEffects, Stopped, TickEnd, Woken
from cronjobs.contrib.drill.plan import Planned, quiet_start
from cronjobs.contrib.drill.server import MailServer
from cronjobs.contrib.drill.stage import (
    LEASE_S,
    PATIENCE_S,
    POLL_S,
    SHUTDOWN_GRACE_S,
    WORKERS,
    Stage,
    StagedTick,
    StuckError,
    is_alive,
    until,
)
from cronjobs.contrib.drill.statements import RECEIPT
from cronjobs.engine.store.enqueue import job_status

# Interrupt a runner when the server has accepted this many of its mails, but has not answered yet.
CAUGHT: Final = 2
# Seconds from SIGTERM to the mail server's answer. A runner that did not wait for the answer would have exited by then.
ANSWER_DELAY_S: Final = 0.5
TERM_TO_KILL_S: Final = 2.0  # seconds from SIGTERM to SIGKILL
HANG_TIMEOUTS_S: Final = (2.0, 4.0, 8.0)
ROUNDS: Final = 5  # the operator repairs at most this many times; once is enough if no runner dies in between
WAITS: Final = ("queued", "failed", "running")


@dataclass
class DrillRun:
    """One form of the drill on *stage*. Calls ``say`` with progress, and ``tell`` with each check."""

    stage: Stage
    server: MailServer
    planned: dict[int, Planned]
    receipts: int
    form: Form
    say: Callable[[str], None]
    tell: Callable[[Check], None]
    found: list[Check] = field(default_factory=list)
    undisturbed: list[StagedTick] = field(default_factory=list)

    def play(self) -> list[Check]:
        try:
            self.enqueue()
            self.interrupt()
            frozen, held = self.freeze()
            self.stop_work()
            self.take_over(frozen, held)
            self.run_out()
            self.fail_for_now()
            self.look_after()
            self._note(checks.told([_end(tick) for tick in self.undisturbed]))
        except StuckError as error:
            self._note(checks.stuck(str(error)))
        self.count()
        return self.found

    # --- scenes -------------------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        self.stage.enqueue_receipts(self.receipts)
        self.say(f"{self.receipts} receipts enqueued; {len(self.planned)} of them will fail on purpose")

    def interrupt(self) -> None:
        """End a tick at the worst moment: it has sent its mails, and has no answer from the server yet."""
        self.server.hold(after=max(1, quiet_start(self.receipts) - WORKERS))
        tick = self._start_and_catch()
        signalled = SYSTEM.monotonic()
        if self.form is Form.SIGTERM:
            tick.send(signal.SIGTERM)
            sleep(ANSWER_DELAY_S)
            self.server.release()
            code = tick.wait()
        else:
            tick.send(signal.SIGKILL)
            code = tick.wait()
            self.server.release()
        took_s = SYSTEM.monotonic() - signalled
        standing = self.stage.look(store.standing)
        recorded = self.stage.look(store.recorded)
        mails = self.server.copies()
        seen = InterruptedSends(
            code,
            took_s,
            mails=mails.total(),
            waiting=standing["queued"] + standing["failed"],
            leases=standing["running"],
            unrecorded=sum(f"receipt:{receipt}" not in recorded for receipt in mails),
        )
        self._note(checks.restarted(self.form, seen, SHUTDOWN_GRACE_S))

    def freeze(self) -> tuple[StagedTick, set[int]]:
        """Freeze a runner mid-work, like a paused virtual machine. Return the runner and its leased jobs."""
        self.server.hold()
        tick = self._start_and_catch()
        held = self.stage.freeze(tick)
        self.server.release()
        self.say(f"a runner that holds {len(held)} jobs is frozen; its lease is {LEASE_S} s")
        return tick, held

    def stop_work(self) -> None:
        """Check that the code of a hanging job and of a cancelled job really stops, not only that their rows change."""
        long_id = self.stage.enqueue("drill.endless")
        self._hang()
        endless = self._pid("endless")
        outlived = is_alive(endless)
        self.stage.command("jobs", "cancel", str(long_id), "--why", "the drill")
        asked, asked_at = SYSTEM.now().timestamp(), SYSTEM.monotonic()
        allowed_s = LEASE_S / 4 + TERM_TO_KILL_S + checks.SLACK_S
        while is_alive(endless) and SYSTEM.monotonic() < asked_at + 2 * allowed_s:
            sleep(POLL_S)
        until(lambda: self._status(long_id) != "running", "to record the end of the cancelled job")
        worked_s = max(0.0, self._worked_until("endless") - asked)
        seen = Stopped(worked_s, allowed_s, is_alive(endless), self._status(long_id))
        self._note(checks.cancelled(seen, outlived))

    def _hang(self) -> None:
        """Run the hanging job. If a busy machine needs the whole timeout to start its process, try a longer timeout."""
        for timeout_s in HANG_TIMEOUTS_S:
            job_id = self.stage.enqueue("drill.hang", timeout_s=timeout_s)
            self._tick()
            if self._file("hang.alive").exists():
                break
        hanging = self._pid("hang")
        worked_s = self._worked_until("hang") - self._began("hang")
        allowed_s = timeout_s + TERM_TO_KILL_S + checks.SLACK_S
        self._note(checks.timed_out(Stopped(worked_s, allowed_s, is_alive(hanging), self._status(job_id))))

    def take_over(self, frozen: StagedTick, held: set[int]) -> None:
        """Let other ticks take the frozen runner's jobs. Then wake the runner, and check that it writes nothing."""

        def all_taken() -> bool:
            if not self.stage.held_by(frozen):
                return True
            if self.stage.look(store.has_due):
                self._tick()
            return False

        until(all_taken, "to take over what the frozen runner held")
        taken = len(held - self.stage.held_by(frozen))
        before, mails = self.stage.look(store.everything), len(self.server.mailbox)
        frozen.send(signal.SIGCONT)
        code = frozen.wait()
        changed = len(before ^ self.stage.look(store.everything))
        self._note(checks.woken(Woken(len(held), taken, code, changed, len(self.server.mailbox) - mails)))

    def run_out(self) -> None:
        """Start ticks, as cron does every minute, until no receipt is waiting."""

        def is_done() -> bool:
            standing = self.stage.look(store.standing)
            if not any(standing[status] for status in WAITS):
                return True
            if self.stage.look(store.has_due):
                self._tick()
            return False

        until(is_done, "to run everything that waits", within_s=PATIENCE_S + self.receipts)

    def fail_for_now(self) -> None:
        """Check the automatic retries, before the operator retries jobs."""
        self._note(checks.retried(self.planned, list(self.server.tries), self._lost()))

    def look_after(self) -> None:
        """Do an operator's morning work on the dead jobs: list them, correct the causes, and retry the jobs."""
        found = not_found = retried = 0
        dead: list[Dead] = []
        for turn in range(ROUNDS):
            dead = self._dead()
            stopped = self.stage.listed("effects", "list", "--state", "stopped")
            if turn == 0:
                self._note(
                    checks.listed(self.planned, dead, list(self.server.tries), self._lost(), open_ends=len(stopped))
                )
            if not dead:
                break
            self.say(
                f"the operator repairs {len(dead)} dead jobs; for {len(stopped)} of them, nobody knows whether the "
                "mail was sent"
            )
            for effect in stopped:
                is_there = f"<{effect['key'].replace(':', '.')}@drill.example>" in self.server.message_ids()
                found, not_found = found + is_there, not_found + (not is_there)
                self._settle(effect["key"], is_there)
            self.server.corrected = True
            words = ("--status", "dead", "--type", RECEIPT, "--yes", "--why", "settled, addresses corrected")
            self.stage.command("jobs", "retry", *words)
            retried += len(dead)
            self.run_out()
        self._note(checks.repaired(SettledEffects(found, not_found, retried, len(dead))))

    def count(self) -> None:
        """Check which mails arrived, that a tick without work is silent, and that no process is left running."""
        self.server.release()
        standing = self.stage.look(store.standing)
        self._note(checks.arrived(self.receipts, list(self.server.mailbox), standing["succeeded"]))
        try:
            self.stage.tick()
            self._note(checks.idle(_end(self.stage.tick())))
        except StuckError as error:
            self._note(checks.stuck(str(error)))
        self._note(checks.left_behind(self.stage.processes()))

    # --- steps of the scenes ------------------------------------------------------------------------------------------

    def _note(self, check: Check) -> None:
        self.found.append(check)
        self.tell(check)

    def _tick(self) -> None:
        self.undisturbed.append(self.stage.tick())

    def _start_and_catch(self) -> StagedTick:
        """Start a tick. Return it once the server has accepted some of its mails, and has not answered yet."""
        tick = self.stage.start()

        def is_caught() -> bool:
            if tick.code is not None:
                raise StuckError(f"a tick ended with {tick.code} before it was interrupted: {tick.err.strip()}")
            return self.server.waiting_for_answer >= CAUGHT

        until(is_caught, "to catch a tick in the middle of its work")
        return tick

    def _dead(self) -> list[Dead]:
        jobs = self.stage.listed("jobs", "list", "--status", "dead", "--type", RECEIPT)
        return [Dead(job["payload"]["receipt"], job["error_type"] or "", job["last_error"] or "") for job in jobs]

    def _settle(self, key: str, is_there: bool) -> None:
        verdict, why = ("done", "is in the mailbox") if is_there else ("not-done", "is not in the mailbox")
        self.stage.command("effects", "settle", key, verdict, "--why", f"its Message-ID {why}")

    def _status(self, job_id: int) -> str:
        with self.stage.database.read() as connection:
            return str(job_status(connection, job_id))

    def _lost(self) -> Counter[int]:
        """For each receipt, count the attempts that died with their runner."""
        return Counter(payload["receipt"] for payload in self.stage.look(store.lost))

    def _pid(self, name: str) -> int:
        """Wait until a handler has started. Return the pid that the handler wrote."""
        file = self._file(f"{name}.alive")
        until(file.exists, f"to begin drill.{name}")
        return int(self._file(f"{name}.pid").read_text())

    def _began(self, name: str) -> float:
        return self._file(f"{name}.pid").stat().st_mtime

    def _worked_until(self, name: str) -> float:
        return self._file(f"{name}.alive").stat().st_mtime

    def _file(self, name: str) -> Path:
        return self.stage.folder / name


def _end(tick: StagedTick) -> TickEnd:
    return TickEnd(tick.code, tick.out, tick.err)
