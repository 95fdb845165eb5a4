"""The kinds of findings. The configuration and the commands use these names."""

from __future__ import annotations

from typing import Final

# Maps every kind to a sentence about it. docs/reference/findings.md describes the kinds in detail.
FINDING_KINDS: Final = {
    "foreign": "the database belongs to another project",
    "no_tick": "no tick reaches the database",
    "host": "a host has stopped ticking while others still tick",
    "ending": "a host's ticks or runners are killed, or its ticks end with an error",
    "clock": "a host's clock is wrong, or a wrong clock set the times of jobs",
    "config": "a file has a bad entry, or a module cannot be imported",
    "refused": "a host refuses its file",
    "files": "hosts, or the ticks of one host, have different files",
    "schedules_off": "no tick fires schedules",
    "behind": "a schedule is due, but no tick fires it",
    "schedule": "a schedule has not run within its grace",
    "failing": "the last runs of a schedule failed or were lost",
    "failing_type": "the last runs of a job type failed",
    "missed": "a schedule did not run when it was due, or ran too early because a clock was wrong",
    "not_run": "a schedule has not run since it was due",
    "dropped": "occurrences beyond catch_up_limit will not run",
    "slower": "a run takes much longer than usual",
    "pause": "a pause holds back runs of a schedule, or may have been forgotten",
    "late": "jobs are late",
    "out_of_reach": "due jobs that the options of every tick exclude",
    "unresolved": "due jobs or schedules of a type that no host knows",
    "misfit": "payloads that do not fit their handler",
    "dead": "dead jobs that nobody has dealt with",
    "effect": "a job is over, and nobody knows whether its effect happened",
    "pruned": "retention removed dead jobs that nobody had dealt with",
    "absent": "a run of cronjobs exec did not start",
    "overlapped": "a run of cronjobs exec began while the previous run was still going",
    "unwatched": "cronjobs exec runs under more names than are watched",
    "full": "a queue is full, or nearly full",
    "crashing": "two runners of a job type died or lost the database",
    "lease": "runs take too long for their lease",
    "extra": "an extra is not installed, or cannot report its findings",
    "threshold": "more jobs died or attempts failed than alerts.thresholds allows",
    "alert": "an alert cannot be delivered",
}
