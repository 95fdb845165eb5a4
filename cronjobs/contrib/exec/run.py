"""Turn the facts of one exec run into its row. Pure, except for the host's clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from cronjobs import masking
from cronjobs.clock import SYSTEM
from cronjobs.desk.store.exec_runs import ExecRow
from cronjobs.engine.execution.process_outcome import last_line_of, outcome_of_exit, sentence
from cronjobs.engine.host.caller import caller, os_user
from cronjobs.engine.rules.ending import decide_end
from cronjobs.engine.rules.lease import Finish
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.model import ExitCodes, Failed, Finished, Job, Lost, Outcome, RetryPolicy, Succeeded
from cronjobs.reserved import EXEC_KILLED, EXEC_PREFIX
from cronjobs.text import OUTPUT_LIMIT, clean

# A run counts as alive for this long, unless its own host proves that it is dead.
LEASE: Final = timedelta(days=1)
LONGEST: Final = timedelta(days=3650)
POLICY: Final = AttemptPolicy(
    RetryPolicy(max_attempts=1),
    on_lost="dead",
    max_losses=1,
    runner_s=LONGEST.total_seconds(),  # a run that is known to be alive keeps its lease, however long the run takes
    lease_s=LEASE.total_seconds(),
)


@dataclass(frozen=True)
class ExecRun:
    """One exec run. ``status`` is the command's wait status, or None while the command is running.

    If exec was killed, ``lost`` is true and ``status`` is None. ``began`` and ``ended`` are seconds since 1970, by the
    host's clock.
    """

    token: str
    name: str
    locked_by: str
    began: float
    cron: str | None = None
    ended: float | None = None
    took: float = 0.0
    status: int | None = None
    failure: str = ""
    output: bytes = b""
    output_size: int = 0
    lost: bool = False

    @classmethod
    def read(cls, facts: dict[str, Any]) -> ExecRun:
        """Parse the facts of a run. Raises KeyError, TypeError or ValueError if exec did not write *facts*."""
        output = facts.get("output", b"")
        return cls(
            token=str(facts["token"]),
            name=str(facts["name"]),
            locked_by=str(facts["locked_by"]),
            began=float(facts["began"]),
            cron=None if facts.get("cron") is None else str(facts["cron"]),
            ended=None if facts.get("ended") is None else float(facts["ended"]),
            took=float(facts.get("took", 0)),
            status=None if facts.get("status") is None else int(facts["status"]),
            failure=str(facts.get("failure", "")),
            output=output if isinstance(output, bytes) else str(output).encode("latin-1"),
            output_size=int(facts.get("output_size", 0)),
        )

    def killed(self) -> ExecRun:
        """Return this run as a lost run, whose exec was killed before it could record the outcome."""
        now = SYSTEM.now().timestamp()
        return replace(self, lost=True, ended=now, took=max(0.0, now - self.began))

    @property
    def key(self) -> str:
        return f"{EXEC_PREFIX}{self.token}"

    @property
    def job_type(self) -> str:
        return f"{EXEC_PREFIX}{self.name}"

    def row(self, more: dict[str, str]) -> ExecRow:
        """Return the row to write when the run begins. *more*, from ``due_by``, is added to the row's ``meta``."""
        host = self.locked_by.partition(":")[0]
        meta = {"host": clean(host), "user": clean(os_user())[:100]} | more
        return ExecRow(self.key, self.job_type, self.locked_by, _since(self.began), LEASE, POLICY, meta, caller())

    def finish(self, job_id: int) -> Finish:
        """Return the values to write to the row when the run has ended."""
        now = SYSTEM.now()
        assert self.ended is not None
        text = output_text(self.output, self.output_size)
        job = Job(job_id, self.job_type, {}, attempt=1, locked_by=self.locked_by)
        finished = Finished(job, self._outcome(text), timedelta(seconds=max(0.0, self.took)), output=text)
        # POLICY allows no retry, so what decide_end returns does not depend on now.
        return decide_end(
            finished, POLICY.retry, now, ended_ago=_since(self.ended), max_losses=POLICY.most_losses
        ).finish

    def _outcome(self, text: str | None) -> Outcome:
        if self.lost or self.status is None:
            return Lost(EXEC_KILLED)
        code = -(self.status & 0x7F) if self.status & 0x7F else self.status >> 8
        if code == 0:
            return Succeeded({"exit_code": 0})
        if self.failure:
            return Failed(sentence(f"exit status {code}: {clean(self.failure)}"), f"exit-{code}", permanent=True)
        ended = outcome_of_exit(ExitCodes(), code, last_line_of(text))
        assert isinstance(ended, Failed)
        return replace(ended, permanent=True)


def _since(instant: float) -> timedelta:
    """Return the time since *instant*, or zero if *instant* is in the future or at least ten years ago.

    A host without a hardware clock boots in 1970, so *instant* may be decades too early.
    """
    ago_s = SYSTEM.now().timestamp() - instant
    return timedelta(seconds=ago_s) if 0 < ago_s < LONGEST.total_seconds() else timedelta(0)


def lost(job_id: int, job_type: str, locked_by: str, attempt: int, now: datetime) -> Finish:
    """Return the values to write if exec was killed. They include no duration, because the duration is unknown."""
    job = Job(job_id, job_type, {}, attempt=attempt, locked_by=locked_by)
    decided = decide_end(Finished(job, Lost(EXEC_KILLED)), POLICY.retry, now, max_losses=POLICY.most_losses)
    return decided.finish._replace(duration=None)


def output_text(tail: bytes, size: int) -> str | None:
    """Return the last ``OUTPUT_LIMIT`` bytes of the output, with secrets masked, or None if there was no output.

    Bytes that are not UTF-8 are replaced.
    """
    if size == 0:
        return None
    data = clean(masking.hide(tail.decode(errors="replace"))).encode()
    if size <= len(tail) and len(data) <= OUTPUT_LIMIT:
        return data.decode()
    kept = data[-(OUTPUT_LIMIT - 80) :].decode(errors="ignore")
    # Mask again, now with the line that marks the cut, because the kept part may begin in the middle of a secret.
    return masking.hide(f"… {size - min(len(tail), len(kept.encode()))} bytes before this were not kept …\n{kept}")
