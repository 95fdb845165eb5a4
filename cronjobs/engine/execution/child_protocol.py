"""How a runner sends a job to the job's own process, and gets the outcome back: as JSON, never as pickled code.

The request is the child's standard input. The answer is a file without a name, which the runner and the child have
open. If the child must stop, the runner writes the reason into the first bytes of this file. The child writes its
outcome after these bytes. Unlike with a pipe, a writer never waits for a reader, and a kill -9 does not lose what was
written before. A second file of this kind contains the handler's latest progress.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, get_args
from zlib import crc32

from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.rules.progress import HowFar, progress
from cronjobs.errors import UsageError
from cronjobs.model import Job, Outcome

# The answer begins with this many bytes for the reason. The longest reason is "lease lost".
REASON_ROOM: Final = 64
_OUTCOMES: Final[dict[str, Any]] = {kind.__name__: kind for kind in get_args(Outcome)}
# These fields of Settings are sent to the child under the same names.
_SETTINGS_SENT: Final = ("folder", "database", "schema", "imports", "python_path", "setup", "env", "around", "trusted")


@dataclass(frozen=True)
class Request:
    """The request to a child that runs *job*'s handler: where the code is, and when the handler's time is up.

    ``settings`` contains what the child needs from the configuration file. The child does not read the file again,
    because a deploy may be replacing it. ``settings.run.shutdown_grace`` is how long the child may keep running after a
    shutdown begins. ``ends_at`` is an instant of the monotonic clock, which all processes of a host share. Even if the
    child starts quickly, it gets no more than ``timeout_s``.
    """

    job: Job
    settings: Settings = field(repr=False)
    ends_at: float
    timeout_s: float
    worker: str = ""
    # On a cluster, a hash of the source code that the handler must have (see ``Registration.source``).
    source: str | None = None

    def encode(self) -> bytes:
        facts = {name: getattr(self.settings, name) for name in _SETTINGS_SENT}
        facts |= {name: getattr(self, name) for name in ("ends_at", "timeout_s", "worker", "source")}
        facts["job"] = self.job._asdict()
        facts["trust_files"] = self.settings.run.trust_files
        facts["grace_s"] = self.settings.run.shutdown_grace.total_seconds()
        return json.dumps(facts, default=_plain).encode()

    @classmethod
    def decode(cls, data: bytes) -> Request:
        facts = json.loads(data)
        job = Job(**{name: _instant(name, value) for name, value in facts.pop("job").items()})
        trust = facts.pop("trust_files")
        run = RunSettings(
            shutdown_grace=timedelta(seconds=facts.pop("grace_s")),
            trust_files=True if trust is True else tuple(trust),
        )
        sent = {name: facts.pop(name) for name in _SETTINGS_SENT}
        sent |= {"folder": Path(sent["folder"]), "python_path": tuple(map(Path, sent["python_path"]))}
        sent |= {"imports": tuple(sent["imports"]), "around": tuple(sent["around"])}
        sent |= {"env": tuple(map(tuple, sent["env"]))}
        return cls(job, Settings(file=sent["folder"] / "cronjobs.yaml", run=run, **sent), **facts)


_INSTANTS: Final = frozenset({"run_at", "scheduled_for", "created_at", "started_at", "next_occurrence"})


def _instant(name: str, value: Any) -> Any:
    return datetime.fromisoformat(value) if name in _INSTANTS and value is not None else value


def _plain(value: object) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return {"seconds": value.total_seconds()}
        case Path():
            return str(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent to the job's own process")


# --- the progress -----------------------------------------------------------------------------------------------------

# The room for a report, in bytes. It is enough even if JSON escapes every character of the note.
PROGRESS_ROOM: Final = 4096


def write_progress(descriptor: int, number: int, how_far: HowFar) -> None:
    """Overwrite the previous progress report with a new one, which is the handler's report *number*."""
    text = json.dumps([number, *how_far]).encode()
    os.pwrite(descriptor, b"%08x%b\n" % (crc32(text), text), 0)


def read_progress(descriptor: int) -> tuple[int, HowFar] | None:
    """Return how many reports the child has written, and the latest one, or None if none can be read now."""
    line = os.pread(descriptor, PROGRESS_ROOM, 0).partition(b"\n")[0]
    text = line[8:]
    if line[:8] != b"%08x" % crc32(text):
        return None
    try:
        number, done, of, note = json.loads(text)
        return int(number), progress(done, of, note)
    # The file may contain anything, because user code may have written to the descriptor.
    except (ValueError, TypeError, UsageError):
        return None


# --- the answer -------------------------------------------------------------------------------------------------------


def write_reason(descriptor: int, reason: str) -> None:
    """Write why the child must stop. Call this before sending SIGTERM, because the child reads the reason then."""
    os.pwrite(descriptor, reason.encode().ljust(REASON_ROOM, b"\0"), 0)


def read_reason(descriptor: int) -> str | None:
    return os.pread(descriptor, REASON_ROOM, 0).rstrip(b"\0").decode(errors="replace") or None


def write_outcome(descriptor: int, outcome: Outcome) -> None:
    os.pwrite(descriptor, outcome_text(outcome).encode() + b"\n", REASON_ROOM)


def outcome_text(outcome: Outcome) -> str:
    """Return *outcome* as JSON text, for ``outcome_from`` to read."""
    facts = {each.name: getattr(outcome, each.name) for each in fields(outcome)}
    return json.dumps({"outcome": type(outcome).__name__, **facts}, default=_plain)


def read_outcome(descriptor: int) -> Outcome | None:
    """Return the outcome that the child wrote, or None if the child ended before it had written all of it."""
    text = os.pread(descriptor, max(0, os.fstat(descriptor).st_size - REASON_ROOM), REASON_ROOM)
    return outcome_from(text) if text.endswith(b"\n") else None


def outcome_from(text: str | bytes) -> Outcome | None:
    """Read what ``outcome_text`` wrote. Return None if *text* is something else."""
    try:
        facts = json.loads(text)
        kind = _OUTCOMES[facts.pop("outcome")]
        outcome: Outcome = kind(**{name: _span(name, value) for name, value in facts.items()})
        return outcome
    # The file may contain anything, because user code may have written to the descriptor.
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _span(name: str, value: Any) -> Any:
    match name, value:
        case (("retry_after" | "at_least" | "after"), {"seconds": float(seconds)}):
            return timedelta(seconds=seconds)
        case "until", str():
            return datetime.fromisoformat(value)
        case "kinds", list():
            return tuple(value)
    return value
