"""Find processes that were killed after they had recorded deaths, and before they could report them.

These are ticks, processes of long jobs, and supervisors of executors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cronjobs import clock
from cronjobs.engine.host.state_folder import State
from cronjobs.engine.probe.fast_path import is_alive
from cronjobs.engine.tick.mail_throttle import unreported_name

# If another process is rewriting the file, wait for it this often, and this long each time. Rewriting takes far less
# time.
TRIES: Final = 50
PAUSE_S: Final = 0.01


class Unreported:
    """The processes of one configuration file that may have recorded deaths and have not reported all of them.

    A file in the state folder has a line for each of them: its ``locked_by``. A process adds its own line, *runner*,
    before its first write, and removes it after its last report. If the process of a line is gone, it was killed. A
    lingering tick has such a line while it lingers (``probe.linger.Trace``).
    """

    def __init__(self, config: Path, runner: str) -> None:
        self._state, self._name, self._runner = State(), unreported_name(config), runner
        self._over: set[str] = set()  # the lines to remove
        self._stored = False  # whether our own line is in the file

    def begin(self) -> None:
        """Add this process. Call this before a commit that may record a death."""
        if self._runner not in self._over:
            self._over.add(self._runner)
            self._stored = self._state.append(self._name, f"{self._runner}\n")

    def killed(self) -> list[str]:
        """Return the killed processes whose deaths this tick has not reported."""
        runners = (self._state.read(self._name) or "").splitlines()
        return [runner for runner in runners if runner not in self._over and not is_alive(runner)]

    def reported(self, runner: str) -> None:
        self._over.add(runner)

    def end(self) -> None:
        """Remove this process, and the killed ones that it reported. Call this after everything is reported."""
        for _ in range(TRIES if self._over else 0):
            runners = (self._state.take(self._name) or "").splitlines()
            if left := [runner for runner in runners if runner not in self._over]:
                self._state.append(self._name, "".join(f"{runner}\n" for runner in left))
            # If our line is not in the file, another process has taken the lines and is about to put ours back.
            if not self._stored or self._runner in runners:
                break
            clock.sleep(PAUSE_S)
