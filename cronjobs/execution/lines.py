"""Lines of JSON over a socket pair, by which a handler's process, its calls' processes and a guard talk."""

from __future__ import annotations

import socket
from typing import Final

AT_ONCE: Final = 1 << 18  # bytes that one read takes


class Lines:
    """One end. Sending waits for the other end to read; whoever sends much has somebody who reads meanwhile."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._parts: list[bytes] = []  # of a line that has no end yet

    def fileno(self) -> int:
        return self.end.fileno()

    def send(self, *lines: str) -> None:
        """Send *lines*, which JSON has without line breaks. Raises OSError if nobody can read them any more."""
        self.end.sendall("".join(f"{line}\n" for line in lines).encode())

    def receive(self) -> list[bytes] | None:
        """The lines that have come, after waiting for something; None: the other end is closed."""
        try:
            data = self.end.recv(AT_ONCE)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts = []
        self._parts.append(rest)
        return lines

    def close(self) -> None:
        self.end.close()
