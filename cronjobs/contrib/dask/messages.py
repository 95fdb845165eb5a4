"""The messages to a cluster's worker and back. They are JSON, and contain no URLs, secrets or pickled code."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple

from cronjobs.contrib.dask.rules import Versions
from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.execution.attempt import Attempt
from cronjobs.engine.execution.child_protocol import Request, outcome_from, outcome_text
from cronjobs.engine.store.tokens import TokenKey
from cronjobs.model import Failed, Outcome
from cronjobs.text import cap, clean
from cronjobs.version import __version__

Said = Literal["ended", "taken", "cancelled", "over", "differs", "cannot"]
LONGEST_OUTPUT: Final = 256_000  # characters


def versions() -> Versions:
    return Versions(__version__, ".".join(platform.python_version_tuple()[:2]))


@dataclass(frozen=True)
class Spec:
    """An attempt, as the supervisor sends it to a worker. The worker sends its progress to ``topic``.

    ``request`` is for the handler's process. The folders in ``request`` are those of the claiming host.
    """

    key: TokenKey
    request: Request
    versions: Versions
    topic: str
    lease_s: float
    max_memory: int | None = None

    @classmethod
    def of(cls, attempt: Attempt, key: TokenKey, settings: Settings, topic: str) -> Spec:
        registration = attempt.job_type.registration
        # Send only settings that cannot hold a secret. Values that may come from ${…}, such as env, stay on this host.
        plain = Settings(
            file=settings.file,
            folder=settings.folder,
            schema=settings.schema,
            imports=settings.imports,
            python_path=settings.python_path,
            setup=settings.setup,
            around=settings.around,
            run=RunSettings(shutdown_grace=settings.run.shutdown_grace),
        )
        # The job has its fence, which a worker with its own database connection needs for effects and transactions.
        request = Request(
            attempt.job,
            plain,
            ends_at=0.0,
            timeout_s=attempt.timeout.total_seconds(),
            source=registration.source if registration is not None else None,
        )
        lease_s = settings.run.lease.total_seconds()
        return cls(key, request, versions(), topic, lease_s, attempt.job_type.max_memory)

    def encode(self) -> str:
        facts: dict[str, Any] = {name: getattr(self, name) for name in ("topic", "lease_s", "max_memory")}
        facts |= {"key": list(self.key), "versions": list(self.versions)}
        return json.dumps(facts | {"request": self.request.encode().decode()})

    @classmethod
    def decode(cls, text: str) -> Spec:
        facts = json.loads(text)
        key, found = TokenKey(*facts.pop("key")), Versions(*facts.pop("versions"))
        return cls(key, Request.decode(facts.pop("request").encode()), found, **facts)

    def starting_at(self, now: float, worker: str, settings: Settings) -> Request:
        """Return the request for the handler's process, which starts *now*, with the worker's *settings*."""
        ends_at = now + self.request.timeout_s
        settings = replace(settings, run=self.request.settings.run)
        return replace(self.request, settings=settings, ends_at=ends_at, worker=worker)


class GuardReport(NamedTuple):
    """A guard's report. If ``said`` is not "ended", this guard did not start the handler, and there is no outcome.

    "taken" means that another guard has the token. "cancelled" and "over" mean that nobody may take the token any more.
    "differs" means that the worker must not run the attempt. "cannot" means that the worker could not begin the
    attempt. For "differs" and "cannot", ``why`` gives the reason.
    """

    said: Said
    why: str = ""
    outcome: Outcome | None = None
    output: str | None = None
    took: timedelta = timedelta(0)

    def encode(self) -> str:
        facts: dict[str, Any] = {"said": self.said, "why": self.why, "took_s": self.took.total_seconds()}
        if self.outcome is not None:
            output = None if self.output is None else cap(clean(self.output), LONGEST_OUTPUT)
            facts |= {"outcome": outcome_text(self.outcome), "output": output}
        return json.dumps(facts)

    @classmethod
    def decode(cls, text: str) -> GuardReport:
        """Parse a report. An unreadable report counts as a failed attempt, because the handler may have run."""
        try:
            facts = json.loads(text)
            outcome = outcome_from(facts["outcome"]) if "outcome" in facts else None
            took = timedelta(seconds=float(facts["took_s"]))
            found = cls(facts["said"], str(facts["why"]), outcome, facts.get("output"), took)
        except (ValueError, TypeError, KeyError, OverflowError):
            found = cls("ended")
        if found.said == "ended" and found.outcome is None:
            return found._replace(outcome=Failed("the Dask worker's report cannot be read", "WorkerReport"))
        return found


class TaskEnd(NamedTuple):
    """The end of a task. If the guard returned no ``report``, ``why`` gives the reason.

    If ``differs``, the worker has different code.
    """

    name: str
    report: str | None = None
    why: str = ""
    differs: bool = False


class Begun(NamedTuple):
    """The message that an attempt runs on the worker with this address."""

    job_id: int
    attempt: int
    worker: str


class Progressed(NamedTuple):
    """The message about a handler's latest progress."""

    job_id: int
    attempt: int
    done: float | None
    of: float | None
    note: str | None


def news(facts: Any) -> Begun | Progressed | None:
    """Parse a guard's message. Anyone can write to a topic, so return None for any other message."""
    try:
        kind, *values = facts
        return Begun(*values) if kind == "begun" else Progressed(*values)
    except (TypeError, ValueError):
        return None
