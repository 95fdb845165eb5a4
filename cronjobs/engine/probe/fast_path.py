"""Run an idle tick from start to end.

If the database may contain work, the full tick takes over. Only the full tick prints and logs.
"""

from __future__ import annotations

import os
import time

from cronjobs.engine.probe import kernel_facts, state_files, timer
from cronjobs.engine.probe.idle_conditions import MANY_QUEUES
from cronjobs.engine.probe.inputs import METRICS_EVERY_S, Inputs, Start
from cronjobs.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cronjobs.engine.probe.postgresql import ServerSession
    from cronjobs.engine.probe.sqlite import FileSession

NO_ALARM = (None, b"", b"{}")
# An alarm's file begins with this key. The key's value is the time before which no idle tick can end or repeat the
# alarm.
QUIET_UNTIL = "quiet_until"
LONGEST_QUIET_S = 25 * 3600


def settle_tick(arguments: Sequence[str]) -> int | None:
    """Start the tick's time limit. If the tick has no work, record an idle tick and return the exit code.

    Returns None if a full tick is needed. Never raises. With ``linger`` this process stays until its budget is used,
    and starts full ticks as separate processes.
    """
    timer.start()
    try:
        return _settle(arguments)
    except Exception:
        # A file is changing, the database is unreachable, or this code has a bug. The full tick will meet the same
        # fault and report it.
        return None


def _settle(arguments: Sequence[str]) -> int | None:
    folder = state_files.lasting_folder()
    if folder is None or os.isatty(1) or os.isatty(2):
        return None
    start = Start(arguments)
    descriptor = state_files.open_folder(folder)
    try:
        content = state_files.read_file(descriptor, start.name)
        inputs = None if content is None else Inputs.from_bytes(content, start)
        if inputs is None:
            return None
        # A full tick is needed if an alarm may have ended, if a message waits to be printed, or if a killed tick may
        # have recorded deaths, or lingered.
        quiet = all(_is_quiet(_kept(descriptor, inputs[name])) for name in ("alarm", "alarm_of_file"))
        quiet = quiet and _kept(descriptor, inputs["word"]) is None
        quiet = quiet and all(map(is_alive, (_kept(descriptor, inputs["unreported"]) or b"").decode().splitlines()))
        quiet = quiet and not _metrics_are_due(inputs["metrics_by"]) and not state_files.spooled(inputs["spool"])
    finally:
        os.close(descriptor)
    lingers = bool(float(inputs["linger_s"])) and not timer.is_given()
    if not quiet and not lingers:
        return None
    begun = timer.began(float(inputs["every_s"]))
    probe = Probe(inputs, place_here())
    try:
        idle = quiet and probe.settle(age_s=time.monotonic() - begun)
        if lingers:
            from cronjobs.engine.probe.linger import stay_here

            return stay_here(probe.look_again, inputs, arguments, begun=begun, idle=idle, place=place_here())
        return 0 if idle else None
    finally:
        probe.close()


def _is_quiet(alarm: bytes | None) -> bool:
    """Return False if an alarm may have ended, or if a clock was set back.

    *alarm* is the content of the alarm's file.
    """
    if alarm is None or alarm in NO_ALARM:
        return True
    begin = f'{{"{QUIET_UNTIL}": '.encode()
    until = alarm.removeprefix(begin).partition(b",")[0] if alarm.startswith(begin) else b""
    return until.isdigit() and 0 < int(until) - time.time() <= LONGEST_QUIET_S


def _metrics_are_due(by: str) -> bool:
    """Return whether a full tick must write the metrics. If a clock was set back, return True."""
    return bool(by) and not 0 < float(by) - time.time() <= METRICS_EVERY_S


def _kept(folder: int, name: str) -> bytes | None:
    try:
        return state_files.read_file(folder, name)
    except FileNotFoundError:
        return None


def place_here() -> str:
    """Return the prefix of ``locked_by`` that all processes of this host, boot and pid namespace share."""
    return f"{kernel_facts.host_name()}:{kernel_facts.boot_id()}:{kernel_facts.pid_namespace()}:"


class Probe:
    """Asks the configured database over one connection whether work is due. Only ``look_again`` catches errors."""

    def __init__(self, inputs: Inputs, place: str) -> None:
        self.inputs = inputs
        self._place = place
        self._session: FileSession | ServerSession | None = None
        # The lease holders on this host that earlier looks saw, and that may hold leases again.
        self._holders: set[str] = set()

    def settle(self, *, age_s: float) -> bool:
        """If the tick is idle, write its row and return True. The tick began *age_s* seconds ago."""
        return self._connected().settle(self.facts(age_s), self._all_alive)

    def look(self) -> str | None:
        """Return a text that identifies the work to do, and that changes whenever the work changes.

        Return None if the tick has no work.
        """
        idle, answers, holders = self._connected().look(self.facts())
        if idle and (holders is None or self._all_alive(holders)):
            return None
        # At times, a working tick holds no lease. So the text must not change if a holder disappears and returns, but
        # only if its process ends.
        holding = holders.split("\n") if holders else []
        self._holders = {each for each in (*self._holders, *holding) if each in holding or is_alive(each)}
        return " ".join([str(answers), *sorted(f"{each} {is_alive(each)}" for each in self._holders)])

    def look_again(self) -> str | None:
        """Like ``look``, for polling. After an error, return None, and open a new connection at the next call."""
        try:
            return self.look()
        except Exception:
            # If the error persists, the tick of the next minute will report it.
            self.close()
            return None

    def close(self) -> None:
        """Close the connection. The next query opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _connected(self) -> FileSession | ServerSession:
        if self._session is None:
            inputs = self.inputs
            if inputs["database"] == "sqlite":
                from cronjobs.engine.probe.sqlite import FileSession

                self._session = FileSession(inputs["path"])
            else:
                from cronjobs.engine.probe.postgresql import ServerSession

                url = "postgresql://" + inputs["address"]
                self._session = ServerSession(url, inputs["schema"] or None, inputs["libpq"])
        return self._session

    def facts(self, age_s: float = 0) -> dict[str, object]:
        """Return the parameters of the query and of the tick's row. The tick began *age_s* seconds ago."""
        host, boot_id, _ = self._place.split(":", 2)
        now_s = time.time()
        facts: dict[str, object] = {
            "tick": os.urandom(6).hex(),
            "host": host,
            "boot_id": boot_id,
            "pid": os.getpid(),
            "version": __version__,
            "age_s": round(age_s, 6),
            "host_s": now_s,
            "now_": round(now_s * 1_000_000) if self.inputs["database"] == "sqlite" else 0,
            "place": self._place,
            "place_length": len(self._place),
            "most_branches": MANY_QUEUES,
            "beyond_s": float(self.inputs["beyond_s"]),
            "defines_nothing": int(self.inputs["defines_nothing"]),
            "alerts": int(self.inputs["alerts"]),
        }
        for name in ("project", "environment", "config", "fingerprint", "schema_revision", "oldest_code"):
            facts[name] = self.inputs[name]
        return facts

    def _all_alive(self, holders: str) -> bool:
        return kernel_facts.UNKNOWN not in self._place.split(":") and all(map(is_alive, holders.split("\n")))


def is_alive(locked_by: str) -> bool:
    """Return whether the process with this ``locked_by`` is certainly running on this host.

    False does not mean that the process has ended: ``host.identity`` can distinguish more cases.
    """
    fields = locked_by.split(":")
    if len(fields) != 6 or not fields[3].isascii() or not fields[3].isdecimal():
        return False
    return fields[4] != "0" and kernel_facts.process_started(int(fields[3])) == fields[4]
