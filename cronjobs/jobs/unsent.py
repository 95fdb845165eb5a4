"""Which errors prove that nothing was sent: no connection was made, and none was tried before in the same block.

An exception alone cannot prove it: an earlier call in the block may have gone through. So an audit hook (PEP 578)
watches what the block's thread connects to and starts. It does not see a connection that was open before the block, or
a thread that the block starts: use one block for one call.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Final

# Where such an error is raised, by module and function. These functions only connect, or look a name up.
_CONNECTING: Final = {
    ("socket", "create_connection"),  # smtplib, http.client, urllib, httpx, ftplib …
    ("socket", "getaddrinfo"),
    ("urllib3.util.connection", "create_connection"),  # requests
}
_LOOKING: Final = frozenset({"socket.connect", "socket.getaddrinfo"})
_DEEDS: Final = frozenset({"socket.sendto", "socket.sendmsg", "subprocess.Popen", "os.system", "os.posix_spawn"})
_WRAPPING: Final = frozenset({"urllib3", "requests", "httpx", "httpcore"})  # they raise their own error "during" it
MOST_LINKS: Final = 10
MOST_NOTED: Final = 100  # frames kept of one block; with more nothing is proven


class Watch:
    """Records what one thread does on the network inside a block. That thread must begin and end it."""

    def __init__(self) -> None:
        self._tried: list[FrameType] = []  # that called connect()
        self._looked_up: list[FrameType] = []
        self._did_more = False

    def begin(self) -> Watch:
        _install()
        _watches().append(self)
        return self

    def end(self) -> None:
        open_ones = _watches()
        if self in open_ones:
            open_ones.remove(self)

    def forget(self) -> None:
        """Release the frames, and with them what their variables refer to."""
        self._tried, self._looked_up = [], []

    def note(self, event: str, frame: FrameType) -> None:
        if event in _DEEDS or len(self._tried) + len(self._looked_up) >= MOST_NOTED:
            self._did_more = True
        elif event == "socket.connect":
            self._tried.append(frame)
        else:
            self._looked_up.append(frame)

    def proves_nothing_sent(self, error: BaseException) -> bool:
        """Whether *error*, which left the block, shows that the only connection it tried was never made."""
        if self._did_more:
            return False
        for _ in range(MOST_LINKS):
            frame = _innermost(error.__traceback__)
            if isinstance(error, OSError) and frame is not None and _is_connecting(frame):
                tried_before = any(each is not frame for each in self._tried)
                return not tried_before and any(each is frame for each in (*self._tried, *self._looked_up))
            wrapped = _wrapped(error)
            if wrapped is None:
                return False
            error = wrapped
        return False


def _innermost(trace: TracebackType | None) -> FrameType | None:
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame


def _is_connecting(frame: FrameType) -> bool:
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _CONNECTING


def _wrapped(error: BaseException) -> BaseException | None:
    """The error that *error* wraps; None: it wraps none.

    The error being handled when it was raised may be unrelated, except for libraries that wrap this way.
    """
    kind = type(error)
    if kind.__module__ == "urllib.error" and kind.__name__ == "URLError":
        reason = getattr(error, "reason", None)
        return reason if isinstance(reason, BaseException) else None
    if error.__cause__ is not None:
        return error.__cause__
    return error.__context__ if str(kind.__module__).partition(".")[0] in _WRAPPING else None


# --- the hook ---------------------------------------------------------------------------------------------------------

_of_thread = threading.local()
_installed = False


def _watches() -> list[Watch]:
    found: list[Watch] | None = getattr(_of_thread, "watches", None)
    if found is None:
        found = _of_thread.watches = []
    return found


def _install() -> None:
    """Install the hook once for the process, as it cannot be removed. Without a watch it costs two look-ups."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_on_event)


def _on_event(event: str, _arguments: Any) -> None:
    if event in _LOOKING or event in _DEEDS:
        watches = getattr(_of_thread, "watches", None)
        if watches:
            frame = sys._getframe(1)
            for watch in watches:
                watch.note(event, frame)
