"""The rules that settle a lost attempt. Each claim writes them to the job's row, and only recovery reads them.

The host that finds a lost attempt may not know the job type: during a deploy, its import of the module may fail, or
only another host may have the module. If recovery used the defaults, it would run a payment with ``on_lost: dead`` a
second time.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from cronjobs.model import OnLost, RetryPolicy, duration

ON_LOST: Final = "no automatic retry (on_lost: dead)"
MADE_BY_HAND: Final = "no automatic retry of a job that was started by hand"
MAX_LOSSES: Final = "no automatic retry after so many losses (run.max_losses)"
# The error type of a waiting job whose last runner died before it had read the job's row.
NOT_READ: Final = "NotRead"
# A runner's process may live this much longer than its time limit, to finish its last writes.
RUNNER_SLACK: Final = timedelta(seconds=5)


@dataclass(frozen=True)
class AttemptPolicy:
    """The policy that applies to one attempt, after all settings have been combined.

    ``in_thread`` is True if the handler runs in the process of its runner and can crash it. ``runner_s`` is how many
    seconds the process that holds the lease can run at most, or None if unknown. ``lease_s`` is how many seconds a
    lease of that process lasts, or None if unknown. ``unread`` is True if no runner has read the job's row since the
    row was leased. In that case the attempt cannot have begun. ``made_by_hand`` is True if "cronjobs run" created the
    job. Its ``on_lost`` is "dead", whatever the job type says.
    """

    retry: RetryPolicy
    on_lost: OnLost = "retry"
    max_losses: int = 10
    retry_until: str | None = None
    in_thread: bool = False
    runner_s: float | None = None
    lease_s: float | None = None
    unread: bool = False
    made_by_hand: bool = False

    @property
    def most_losses(self) -> int:
        """The number of lost runners after which the job is dead. It is 1 for ``on_lost: dead``."""
        return 1 if self.on_lost == "dead" else self.max_losses

    @property
    def why_not_again(self) -> str:
        """The reason why a job that was lost ``most_losses`` times is dead."""
        if self.made_by_hand:
            return MADE_BY_HAND
        return ON_LOST if self.on_lost == "dead" else MAX_LOSSES

    def row(self) -> dict[str, Any]:
        """Return the policy as JSON values. The claim adds the schedule's ``retry_until``."""
        retry = self.retry
        facts: dict[str, Any] = {
            "max_attempts": retry.max_attempts,
            "base_s": duration(retry.base).total_seconds(),
            "factor": retry.factor,
            "cap_s": duration(retry.cap).total_seconds(),
            "jitter": retry.jitter,
            "delays_s": None if retry.delays is None else [duration(delay).total_seconds() for delay in retry.delays],
            "retry_on": None if retry.retry_on is None else list(retry.retry_on),
            "give_up_on": list(retry.give_up_on) or None,
        }
        facts |= {name: value for name, value in vars(self).items() if name not in ("retry", "unread", "made_by_hand")}
        facts |= {"made_by_hand": True} if self.made_by_hand else {}
        return {name: value for name, value in facts.items() if value is not None}

    def text(self) -> str:
        return json.dumps(self.row(), separators=(",", ":"), allow_nan=False)


def read_policy(value: Any) -> AttemptPolicy | None:
    """Return the policy that the claim wrote, or None if plain SQL wrote something else."""
    if not isinstance(value, dict):
        return None
    try:
        retry = RetryPolicy(
            max_attempts=int(value["max_attempts"]),
            base=duration(float(value["base_s"])),
            factor=float(value["factor"]),
            cap=duration(float(value["cap_s"])),
            jitter=float(value["jitter"]),
            delays=value.get("delays_s"),
            retry_on=value.get("retry_on"),
            give_up_on=value.get("give_up_on") or (),
        )
        return AttemptPolicy(
            retry,
            on_lost="dead" if value["on_lost"] == "dead" else "retry",
            max_losses=int(value["max_losses"]),
            retry_until=value.get("retry_until"),
            in_thread=value.get("in_thread") is True,
            runner_s=seconds(value.get("runner_s")),
            lease_s=seconds(value.get("lease_s")),
            unread=value.get("unread") is True,
            made_by_hand=value.get("made_by_hand") is True,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def seconds(value: Any) -> float | None:
    """Return a number of seconds from a row that plain SQL may have written, or None if it is not a number."""
    try:
        read = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return read if math.isfinite(read) and read >= 0 else None


@dataclass(frozen=True)
class ClaimPolicies:
    """The policies of the job types that a claim may take, as JSON text.

    ``usual`` applies to all types that are not in ``others``. Most types share one policy, so the text is short. It
    must be, because a runner may send it with a hundred claims a second.
    """

    usual: str = AttemptPolicy(RetryPolicy()).text()
    others: str = "{}"

    @classmethod
    def of(cls, policies: Mapping[str, AttemptPolicy]) -> ClaimPolicies:
        if not policies:
            return cls()
        rows = {job_type: policy.text() for job_type, policy in policies.items()}
        [(usual, _)] = Counter(rows.values()).most_common(1)
        others = {job_type: json.loads(row) for job_type, row in rows.items() if row != usual}
        return cls(usual, json.dumps(others, separators=(",", ":")))


USUAL: Final = ClaimPolicies()
