"""The facts about a job that failed.

Alerts and cron's mail show the same facts. Each fact is masked, and takes one line.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cronjobs import masking
from cronjobs.engine.rules.error_groups import class_and_text
from cronjobs.errors import EffectUnknown
from cronjobs.text import one_line

LINE: Final = 300  # in characters
COMMAND: Final = 2000
SETTLE: Final = "cronjobs effects settle"
_FRAME: Final = re.compile(r'(?m)^  File "([^"\n]{1,500})", line (\d{1,9}), in (\S{1,200})$')
_NOT_THEIRS: Final = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<")


def described(
    job_id: int,
    job_type: str,
    error_type: str | None,
    error: str | None,
    at: str | None,
    config: Path,
    mask: Callable[[str], str] = masking.hide,
) -> dict[str, Any]:
    """Return the facts about a failed job, for a message. *at* is the line at which the error was raised."""

    def shown(text: str | None, limit: int = LINE) -> str | None:
        return None if not text else one_line(mask(text), limit)

    text = shown(error, 2 * LINE)
    if text is not None and error_type == EffectUnknown.__name__:
        text = text.replace(SETTLE, absolute(SETTLE, config))
    return {
        "id": job_id,
        "job_type": shown(job_type),
        "error_type": shown(error_type),
        "error": text,
        "at": shown(at),
        "command": absolute(f"cronjobs jobs show {job_id}", config),
    }


def error_line(job: dict[str, Any]) -> str:
    """Return the class and the text of an error on one line. *job* is a result of ``described``."""
    return class_and_text(job["error_type"], job["error"])


def absolute(command: str, config: Path) -> str:
    """Return *command* with full paths for the program and the configuration file, so that it works in any folder.

    *command* may also be a shell's line of several such commands, with "; " between them.
    """
    words = command.removeprefix("cronjobs ")
    if words == command:
        return one_line(command, COMMAND)
    script = Path(sys.executable).with_name("cronjobs")
    program = [str(script)] if script.exists() else [sys.executable, "-P", "-m", "cronjobs"]
    ours = shlex.join([*program, "--config", str(config.absolute())])
    return one_line(f"{ours} {words.replace('; cronjobs ', f'; {ours} ')}", COMMAND)


def last_own_line(traceback: str | None, folder: Path) -> str | None:
    """Return the location and the source line of the last frame in the user's own code, or None if there is none.

    The user's own code is in *folder*, the folder of the configuration file. If no frame of the traceback is in that
    folder, any code outside installed packages counts as the user's own.
    """
    frames = list(_FRAME.finditer(traceback or ""))
    own = [frame for frame in frames if frame[1].startswith(f"{folder}/") and not _NOT_THEIRS.search(frame[1])]
    own = own or [frame for frame in frames if not _NOT_THEIRS.search(frame[1]) and "/cronjobs/" not in frame[1]]
    if not own:
        return None
    frame = own[-1]
    line = (traceback or "")[frame.end() + 1 :].partition("\n")[0]
    code = line.strip() if line.startswith("    ") else ""
    return f"{frame[1]}:{frame[2]} in {frame[3]}" + (f": {code}" if code else "")
