"""Find out which runners are certainly gone. An operator may release their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cronjobs.desk.insight.formatting import Times, host_of, safe
from cronjobs.desk.rules.tick_rows import did_of
from cronjobs.engine.host.identity import Identity, is_gone
from cronjobs.engine.store.operating import HeldJob
from cronjobs.engine.tick.runners import lease_is_wrong
from cronjobs.model import rough


@dataclass
class Holders:
    """Finds out which of the runners that hold leases are gone. ``here``: this process, which looks for them."""

    here: Identity = field(default_factory=Identity.here)
    _gone: dict[str, bool | None] = field(default_factory=dict)

    def is_gone(self, locked_by: str) -> bool | None:
        """Return ``identity.is_gone``, cached for each runner, since a runner may have held hundreds of jobs."""
        if locked_by not in self._gone:
            self._gone[locked_by] = is_gone(locked_by, self.here)
        return self._gone[locked_by]

    def tick_is_gone(self, tick: Mapping[Any, Any]) -> bool | None:
        """Return the same for the process of *tick*, the row of a tick that has recorded no end."""
        runner = did_of(tick["did"]).get("runner")
        return self.is_gone(runner) if isinstance(runner, str) else None

    def lease(self, job: Mapping[Any, Any], times: Times) -> str:
        """Return text about the lease of a running job, such as "lease 48s left"."""
        if self.is_gone(job["locked_by"]):
            return "the runner's process is gone"
        left = job["locked_until"] - times.now
        return f"lease {rough(left)} left" if left >= timedelta(0) else f"OVERDUE: lease ended {rough(left)} ago"

    def is_lost(self, job: Mapping[Any, Any], now: datetime) -> bool:
        """Return whether a running job has lost its runner: the process is gone, or the lease has ended."""
        return bool(self.is_gone(job["locked_by"])) or job["locked_until"] < now

    def may_release(self, holding: HeldJob, now: datetime) -> bool:
        """Return whether an operator may release the job, because its runner is gone.

        If nobody can check the runner, a lease that ends later than any runner could have set also permits a release.
        While a cluster worker may still be running the job, return False.
        """
        if holding.permitted(now):
            return False
        gone = self.is_gone(holding.locked_by)
        return gone is True or (gone is None and lease_is_wrong(holding.locked_until, now, holding.lease_s))

    def why_kept(self, holding: HeldJob, times: Times) -> str:
        holder = Identity.parse(holding.locked_by)
        who = (
            f'"{safe(holding.locked_by, 80)}"' if holder is None else f"process {holder.pid} on {host_of(holder.host)}"
        )
        if holding.locked_until < times.now:
            until = f"the lease ended {times.both(holding.locked_until)}, so the next tick should record its outcome"
        else:
            left = rough(holding.locked_until - times.now)
            until = f"the lease runs until {times.clock(holding.locked_until)}, {left} from now, or longer if renewed"
        if self.is_gone(holding.locked_by) and holding.permitted_until is not None:
            at = times.clock(holding.permitted_until)
            rest = f"a cluster worker may still be running the job until {at}; after that, a tick records its outcome"
            return f"is held by {who}, which has exited; {rest}"
        if self.is_gone(holding.locked_by) is False:
            alive = "and that process or a child of it is still running"
            return f'is held by {who}, {alive}: "cronjobs jobs cancel {holding.job.id}" asks the job to stop; {until}'
        if holder is not None and holder.host == self.here.host:
            seen = "which cannot be checked from here: it ran in another container, or before the last boot"
        else:
            seen = f"which cannot be checked from {host_of(self.here.host)}: release the job on that process's host"
        return f"is held by {who}, {seen}; {until}"
