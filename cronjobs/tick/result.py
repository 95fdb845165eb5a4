"""What a tick did, for its row, its summary and its exit code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cronjobs.errors import EX_SOFTWARE
from cronjobs.tick.counts import Counts

NOTHING_ELSE_DUE: Final = "nothing else is due"


@dataclass
class Result:
    """What a tick did. ``stuck``: a thread still runs, so the process must exit at once."""

    ended: str = ""
    counts: Counts = field(default_factory=Counts)
    occurrences: dict[str, int] = field(default_factory=dict)
    recovered: int = 0
    pruned: int = 0
    not_started: list[dict[str, Any]] = field(default_factory=list)  # due jobs it left, see not_started.py
    faults: int = 0  # in the user's code and configuration
    refused: str | None = None  # why the file was not applied
    trouble: str | None = None  # with the database
    fault: Exception | None = None  # in cronjobs itself
    stuck: bool = False
    signal: int | None = None

    def did(self) -> dict[str, Any]:
        """The figures that are not zero, for the tick's row."""
        counts = {name: count for name, count in asdict(self.counts).items() if count}
        more: dict[str, Any] = {"recovered": self.recovered, "pruned": self.pruned, "occurrences": self.occurrences}
        more["refused"] = self.refused
        return counts | {name: value for name, value in more.items() if value}

    def exit_code(self, fail_on: str = "dead") -> int:
        """0 the tick did its work; 1 a job died; 3 configuration; 4 database; 70 a bug in cronjobs; 128+n signal."""
        if self.trouble is not None:
            return 4
        if self.fault is not None:
            return EX_SOFTWARE
        if self.signal is not None:
            return 128 + self.signal
        if self.faults:
            return 3
        failed = self.counts.dead + (self.counts.failed + self.counts.timed_out if fail_on == "any" else 0)
        return 1 if failed and fail_on != "never" else 0
