"""Dead-man's switches: Healthchecks pings for runs of schedules and for ticks.

https://healthchecks.io/docs/http_api/: a request to the URL alone means success. /start, /fail, /log or /EXIT-CODE may
follow the URL, and ?rid= links the start of a run to its end. A missing ping raises an alarm at Healthchecks. So a ping
is retried at most once, and never stored. The process waits for its pings only before it exits.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit
from uuid import NAMESPACE_URL, uuid4, uuid5

from cronjobs import events
from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.tick.extras import Hook, HookContext, RunSummary
from cronjobs.errors import CronjobsError
from cronjobs.masking import mask
from cronjobs.model import Failed, Finished, Job
from cronjobs.text import one_line

PING_S: Final = 5.0
FLUSH_S: Final = 10.0
FAILURES: Final = 3  # after this many failures in a row, this process sends no more pings
# Events sent as /log, which raises no alarm: the run has not failed for good, or an operator has ended it.
_LATER: Final = {
    "job.retried": "failed, will be retried",
    "job.interrupted": "interrupted, will run again",
    "job.snoozed": "postponed by its handler",
    "job.cancelled": "cancelled",
}


class Ping(NamedTuple):
    url: str
    body: str
    of: str  # the schedule's name, or "tick"


class Pings:
    """The pings of one process, sent in order by a thread that the first ping starts."""

    def __init__(self, settings: Settings, emit: Callable[[events.Event], None]) -> None:
        self._settings, self._emit = settings, emit
        self._urls = {name: schedule.ping for name, schedule in settings.schedules.items() if schedule.ping}
        self._running: dict[int, tuple[str, str, str]] = {}  # job's id → URL, rid, schedule
        self._codes: dict[int, str] = {}
        self._outbox: queue.SimpleQueue[Ping | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._errors: dict[str, str] = {}
        self._tick_id = str(uuid4())

    # --- runs of schedules --------------------------------------------------------------------------------------------

    @property
    def schedules(self) -> frozenset[str]:
        return frozenset(self._urls)

    def started(self, job: Job) -> None:
        """Send the ping /start, because the handler of *job* is starting."""
        schedule = job.schedule or ""
        url = self._urls.get(schedule)
        if url is not None:
            run_id = str(uuid5(NAMESPACE_URL, f"{url}#{job.id}.{job.attempt}"))
            self._running[job.id] = (url, run_id, schedule)
            self._put(url, "start", run_id, "", schedule)

    def ended(self, finished: Finished) -> None:
        """Remember the exit code with which the handler failed, if any. ``job_event`` sends the code."""
        if finished.job.id in self._running and isinstance(finished.outcome, Failed):
            kind, _, code = finished.outcome.error_type.partition("-")
            self._codes[finished.job.id] = code if kind == "exit" and code.isdecimal() else ""

    def job_event(self, event: events.Event) -> None:
        """Send a ping for the recorded outcome."""
        if event.name not in _LATER and event.name not in ("job.succeeded", "job.dead"):
            return
        found = self._running.pop(event.facts["job_id"], None)
        code = self._codes.pop(event.facts["job_id"], "")
        if found is None:
            return
        url, run_id, schedule = found
        said, text = "", str(event.facts.get("error") or "")
        if event.name == "job.dead":
            said = code or "fail"
        elif event.name in _LATER:
            said, text = "log", f"{_LATER[event.name]}: {text}"
        self._put(url, said, run_id, text, schedule)

    # --- ticks --------------------------------------------------------------------------------------------------------

    def tick_started(self) -> None:
        if self._settings.run.ping:
            self._put(self._settings.run.ping, "start", self._tick_id, "", "tick")

    def tick_ended(self, exit_code: int, error: str = "") -> None:
        """Ping the end of the tick. Exit code 1 (a job died) counts as success, since findings report the job."""
        if self._settings.run.ping:
            said = "" if exit_code in (0, 1) else str(exit_code)
            self._put(self._settings.run.ping, said, self._tick_id, error, "tick")

    # --- sending ------------------------------------------------------------------------------------------------------

    def _put(self, url: str, said: str, run_id: str, text: str, of: str) -> None:
        parts = urlsplit(url)
        path = f"{parts.path.rstrip('/')}/{said}" if said else parts.path
        query = "&".join(word for word in (parts.query, f"rid={run_id}") if word)
        body = one_line(mask(text, self._settings.secrets), 1000) if text else ""
        self._outbox.put(Ping(urlunsplit((parts.scheme, parts.netloc, path, query, "")), body, of))
        if self._thread is None:
            thread = threading.Thread(target=self._send_all, name="cronjobs-pings", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError):
                # The process or memory limit is reached. Healthchecks will notice that the ping is missing.
                return
            self._thread = thread

    def _send_all(self) -> None:
        from cronjobs.contrib.alerts.webhook import post

        failed = 0
        while (ping := self._outbox.get()) is not None:
            for _ in range(2 if failed == 0 else 1):
                if failed >= FAILURES:
                    break
                try:
                    post(ping.url, ping.body.encode(), PING_S, "text/plain; charset=utf-8")
                    failed = 0
                    break
                except Exception as error:  # a library may raise any exception on a bad response
                    failed += 1
                    self._errors[ping.of] = f"{type(error).__name__}: {error}"

    def flush(self, within_s: float) -> None:
        """Wait up to *within_s* for the queued pings to be sent. Report failed pings. Call no method after this."""
        if self._thread is None:
            return
        self._outbox.put(None)
        self._thread.join(max(0.0, min(FLUSH_S, within_s)))
        for of, error in sorted(self._errors.items()):
            self._emit(events.ping_not_sent(of, one_line(mask(error, self._settings.secrets), 300)))


class PingHook(Hook):
    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        self._pings = Pings(context.settings, context.emit)
        self.schedules = self._pings.schedules

    def started(self, job: Job) -> None:
        self._pings.started(job)

    def ended(self, finished: Finished) -> None:
        self._pings.ended(finished)

    def job_event(self, event: events.Event) -> None:
        self._pings.job_event(event)

    def begin(self) -> None:
        if self.context.seen is not None:
            self._pings.tick_started()

    def end(self, summary: RunSummary) -> None:
        if self.context.seen is not None:
            self._pings.tick_ended(summary.exit_code, summary.trouble)
        self._pings.flush(summary.until - self.context.clock.monotonic())


hook = PingHook


def not_started(settings: Settings, error: CronjobsError, until: float) -> None:
    """Send a ping saying that a tick did not start. No log is open yet, so a failed ping is not reported."""
    pings = Pings(settings, lambda _event: None)
    pings.tick_ended(error.exit_code, str(error))
    pings.flush(until - SYSTEM.monotonic())
