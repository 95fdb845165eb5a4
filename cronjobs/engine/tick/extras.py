"""Run the extras of a tick so that no extra can harm it.

Each extra has its own thread, which runs the extra's calls one after another. So an error, a hang or a slow network
harms only that extra. The tick waits at most two seconds in total for each extra. After that it continues without the
extra, reports the delay, and does not call the extra again. After writing its row, the tick waits for extras until its
deadline.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from cronjobs import events
from cronjobs.clock import SYSTEM, Clock
from cronjobs.engine.config.import_path import prepare_imports
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.probe.state_files import spooled
from cronjobs.engine.store.ticks import Overview
from cronjobs.errors import CronjobsError
from cronjobs.installed import if_installed
from cronjobs.model import Finished, Job

if TYPE_CHECKING:
    from cronjobs.engine.jobs.job_types import JobTypes

# A tick with work waits at most this long in total for one extra.
WAIT_S: Final = 2.0
# A process that has no deadline waits this long for its extras when it ends.
LAST_S: Final = 10.0


class Door(NamedTuple):
    """The module that contains an extra's ``hook``. ``wanted`` says whether a project with these settings uses the
    extra.
    """

    module: str
    wanted: Callable[[Settings, str], bool]
    # True if the extra reports problems. Jobs that run outside a tick use such an extra, too, and it reports ticks that
    # did not start.
    reports: bool = False


def _pings(settings: Settings, _spool: str) -> bool:
    return settings.run.ping is not None or any(each.ping for each in settings.schedules.values())


DOORS: Final = {
    "ping": Door("cronjobs.contrib.alerts.pings", _pings, reports=True),
    "exec": Door("cronjobs.contrib.exec.hook", lambda _settings, spool: bool(spooled(spool))),
    "metrics": Door("cronjobs.contrib.metrics.hook", lambda settings, _spool: settings.metrics.textfile is not None),
    "alerts": Door(
        "cronjobs.contrib.alerts.hook",
        lambda settings, _spool: settings.alerts is not None,
        reports=True,
    ),
}


@dataclass(frozen=True)
class HookContext:
    """The objects that a hook may use.

    A hook opens its own short transactions, and does not use the tick's connection.
    """

    settings: Settings
    database: Database
    identity: Identity
    emit: Callable[[events.Event], None]  # the tick's own thread logs the event later
    clock: Clock = SYSTEM
    deadline: float = math.inf  # the tick's deadline on the monotonic clock
    go_on: Callable[[], bool] = lambda: True  # returns False if the tick has to stop, or the database is gone
    # The facts that the tick read when it began. None in a process that runs a job outside a tick.
    seen: Overview | None = None
    # The address where runs of "cronjobs exec" wait for this project to record them.
    spool: str = "-"


class RunSummary(NamedTuple):
    """The facts that ``Hook.end`` gets. The hook must finish by ``until``, an instant of the monotonic clock."""

    until: float
    exit_code: int = 0
    trouble: str = ""
    news: bool = False  # true if a problem may have begun or ended in this tick
    types: JobTypes | None = None  # None if this process did not load the handlers


class Hook:
    """The work that an extra does alongside a tick.

    Override the methods that you need. They run in the extra's own thread.
    """

    schedules: frozenset[str] = frozenset()  # call the hook for jobs of these schedules

    def __init__(self, context: HookContext) -> None:
        self.context = context

    def begin(self) -> None:
        """Called before the tick recovers or claims anything."""

    def before_work(self) -> None:
        """Called before a tick's work, for tasks that no recent tick has had time for."""

    def started(self, job: Job) -> None:
        """Called when the code of *job* starts."""

    def ended(self, finished: Finished) -> None:
        """Called when the job's code has ended. A later ``job_event`` reports what happens to the job."""

    def job_event(self, event: events.Event) -> None:
        """Called with each event about a job for which ``started`` was called."""

    def wants_handlers(self) -> bool:
        """Return whether ``end`` needs the handlers. Only the tick's own thread may load them."""
        return False

    def end(self, summary: RunSummary) -> None:
        """Called when the tick has recorded everything. The call may take until the tick's deadline."""


class Extras:
    """The extras of one process. Workers call ``started`` and ``ended``. The loop's thread calls the other methods."""

    def __init__(self, doors: Mapping[str, Door], context: HookContext) -> None:
        self._emit, self._clock = context.emit, context.clock
        self._events: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        ours = replace(context, emit=self._events.put)
        self._extras = [_Extra(name, door.module, ours) for name, door in doors.items()]
        self._extras_of_job: dict[int, list[_Extra]] = {}

    def begin(self) -> None:
        """Call every extra's ``begin``, without waiting for the calls to end."""
        for extra in self._extras:
            extra.call(lambda hook: hook.begin())

    def before_work(self) -> None:
        self._each(lambda hook: hook.before_work())

    def want_handlers(self) -> bool:
        found: list[bool] = []
        self._each(lambda hook: found.append(hook.wants_handlers()))
        return any(found)

    def end(self, summary: RunSummary) -> None:
        """Call every extra's ``end``, which is its last call, and wait for all of them."""
        self._each(lambda hook: hook.end(summary), SYSTEM.monotonic() + summary.until - self._clock.monotonic())

    def _each(self, do: Callable[[Hook], None], until: float | None = None) -> None:
        called = [(extra, extra.call(do)) for extra in self._extras]
        for extra, done in called:
            if done is not None:
                extra.wait(done, until)
        while not self._events.empty():
            self._emit(self._events.get())

    # --- attempts -----------------------------------------------------------------------------------------------------

    @property
    def follow_attempts(self) -> bool:
        return any(extra.schedules for extra in self._extras)

    def started(self, job: Job) -> None:
        interested = [extra for extra in self._extras if job.schedule in extra.schedules]
        if interested:
            self._extras_of_job[job.id] = interested
        for extra in interested:
            extra.call(lambda hook: hook.started(job))

    def ended(self, finished: Finished) -> None:
        for extra in self._extras_of_job.get(finished.job.id, ()):
            extra.call(lambda hook: hook.ended(finished))

    def forwarding(self, emit: Callable[[events.Event], None]) -> Callable[[events.Event], None]:
        """Return a function that passes an event to *emit*, and then to the extras that saw the job start."""
        if not self.follow_attempts:
            return emit

        def both(event: events.Event) -> None:
            emit(event)
            for extra in self._extras_of_job.get(event.facts.get("job_id", 0), ()):
                extra.call(lambda hook: hook.job_event(event))

        return both


class _Extra:
    """One extra and its thread, which the first call starts."""

    def __init__(self, name: str, module: str, context: HookContext) -> None:
        self.name = name
        self.schedules: frozenset[str] = frozenset()
        self._module, self._context = module, context
        self._inbox: queue.SimpleQueue[tuple[Callable[[Hook], None], threading.Event]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left_s = WAIT_S
        self._given_up = False

    def call(self, do: Callable[[Hook], None]) -> threading.Event | None:
        """Queue *do*. Return an event that is set when it has run, or None if the tick continues without this extra."""
        if self._given_up:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"cronjobs-extra-{self.name}", daemon=True)
            try:
                self._thread.start()
            # This process or its user has reached a limit on threads or on memory.
            except (RuntimeError, MemoryError) as error:
                self._given_up = True
                self._context.emit(events.extra_failed(self.name, f"{type(error).__name__}: {error}"))
                return None
        done = threading.Event()
        self._inbox.put((do, done))
        return done

    def wait(self, done: threading.Event, until: float | None) -> None:
        """Wait for a call until the instant *until* or, if that is None, for what is left of WAIT_S."""
        began = SYSTEM.monotonic()
        if not done.wait(max(0.0, self._left_s if until is None else until - began)):
            self._given_up = True
            self._context.emit(events.extra_left_behind(self.name, SYSTEM.monotonic() - began))
        if until is None:
            self._left_s -= SYSTEM.monotonic() - began

    def _run(self) -> None:
        hook: Hook | None = None
        while True:
            do, done = self._inbox.get()
            try:
                if hook is None:
                    module = import_module(self._module)
                    # A third-party extra may have findings but no hook.
                    hook = (module.hook if self.name in DOORS else getattr(module, "hook", Hook))(self._context)
                    self.schedules = hook.schedules
                do(hook)
            except CronjobsError as error:
                self._context.emit(events.extra_failed(self.name, str(error)))
            # The tick must continue, whatever an extra does.
            except BaseException as error:
                self._context.emit(events.extra_failed(self.name, f"{type(error).__name__}: {error}"))
            finally:
                done.set()


def extras_of_tick(context: HookContext) -> Extras:
    """Return the extras of cronjobs that this project uses, and the third-party extras that its file names."""
    doors = {name: door for name, door in DOORS.items() if door.wanted(context.settings, context.spool)}
    if named := context.settings.extras:
        prepare_imports(context.settings)
        doors |= {module: Door(module, lambda *_: True) for module in named}
    return Extras(doors, context)


def extras_of_job(settings: Settings, database: Database, emit: Callable[[events.Event], None]) -> Extras:
    """Begin and return the extras for a process that runs jobs outside a tick."""
    doors = {name: door for name, door in DOORS.items() if door.reports and door.wanted(settings, "-")}
    extras = Extras(doors, HookContext(settings, database, Identity.here(), emit))
    extras.begin()
    extras.before_work()
    return extras


def not_started(settings: Settings, error: CronjobsError, until: float) -> None:
    """Make extras report that this tick did not start. Wait for them until *until*, on the monotonic clock."""
    threads: list[threading.Thread] = []
    for door in DOORS.values():
        if door.reports and door.wanted(settings, "-"):
            threads.append(
                threading.Thread(target=_report_not_started, args=(door.module, settings, error, until), daemon=True)
            )
            threads[-1].start()
    for thread in threads:
        thread.join(max(0.0, until - SYSTEM.monotonic()))


def _report_not_started(module: str, settings: Settings, error: CronjobsError, until: float) -> None:
    if (there := if_installed(module)) is not None:
        there.not_started(settings, error, until)
