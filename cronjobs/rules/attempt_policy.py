"""What the end of one attempt is decided by: written on its row by each claim, read by recovery only.

Whoever finds an attempt lost may not know its job type: a module cannot be imported in the middle of a deploy, or only
another host has it. Settled by the defaults, a payment with ``on_lost: dead`` would run a second time.
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

RUNNER_SLACK: Final = timedelta(seconds=5)  # by which a runner may outlast its own limit, to write its last words


@dataclass(frozen=True)
class AttemptPolicy:
    """The effective policy of one attempt.

    ``in_thread``: the handler runs in its runner's own process, and can take it down. ``runner_s``: how old the
    process that holds the lease can get, in seconds; None: not known. ``lease_s``: how long its leases are.
    """

    retry: RetryPolicy
    on_lost: OnLost = "retry"
    max_losses: int = 10
    retry_until: str | None = None
    in_thread: bool = False
    runner_s: float | None = None
    lease_s: float | None = None

    @property
    def most_losses(self) -> int:
        """How often a runner may die with the job: once, where it must not run again by itself."""
        return 1 if self.on_lost == "dead" else self.max_losses

    def row(self) -> dict[str, Any]:
        """As JSON, without the attempt that it is for: a claim adds it, and the schedule's ``retry_until``."""
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
            "on_lost": self.on_lost,
            "max_losses": self.max_losses,
            "retry_until": self.retry_until,
            "in_thread": self.in_thread,
            "runner_s": self.runner_s,
            "lease_s": self.lease_s,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def for_attempt(self, attempt: int) -> str:
        """The whole value of the column, as JSON text."""
        return json.dumps(self.row() | {"attempt": attempt}, separators=(",", ":"), allow_nan=False)


def read_policy(value: Any, attempt: int) -> AttemptPolicy | None:
    """The policy that the claim of *attempt* wrote; None: an older version claimed it, or nobody can read it."""
    if not isinstance(value, dict) or value.get("attempt") != attempt:
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
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def seconds(value: Any) -> float | None:
    """A number of seconds as plain SQL may have written it; None: it is none."""
    try:
        read = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return read if math.isfinite(read) and read >= 0 else None


@dataclass(frozen=True)
class ClaimPolicies:
    """The policies of all types that a claim may take, as it sends them: ``usual`` is that of whoever is not named.

    Most types have the same, and a claim is sent a hundred times a second. JSON texts; None: nothing is written.
    """

    usual: str | None = None
    others: str | None = None

    @classmethod
    def of(cls, policies: Mapping[str, AttemptPolicy]) -> ClaimPolicies:
        if not policies:
            return cls()
        rows = {job_type: json.dumps(policy.row(), separators=(",", ":")) for job_type, policy in policies.items()}
        [(usual, _)] = Counter(rows.values()).most_common(1)
        others = {job_type: json.loads(row) for job_type, row in rows.items() if row != usual}
        return cls(usual, json.dumps(others, separators=(",", ":")))


NONE_WRITTEN: Final = ClaimPolicies()
