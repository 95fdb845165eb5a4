"""Text from outside (output, errors, payloads), made safe to store, to log and to print. Pure, no I/O.

``clean`` and ``cap`` are for what is stored, ``one_line`` and ``visible`` for what is printed: the stored text keeps
its colours and control characters, and only printing makes them harmless.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Final

OUTPUT_LIMIT: Final = 64 * 1024  # bytes of UTF-8, of an attempt's output
TRACEBACK_LIMIT: Final = 32 * 1024
ERROR_LIMIT: Final = 2 * 1024  # last_error: short, for people

# Characters that may move a cursor, end a line or reorder it: C0, DEL and C1 controls (ECMA-48), line and paragraph
# separators (str.splitlines and log viewers end lines there), bidi controls (UAX 9; "Trojan Source", CVE-2021-42574),
# and lone surrogates, which no terminal's encoding can represent.
_CONTROLS: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE: Final = re.compile(f"[{_CONTROLS}]")
_UNSAFE_IN_A_LINE: Final = re.compile(f"[\t\n{_CONTROLS}]")
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
_MARKER_ROOM: Final = 64  # bytes kept free for the line in the middle


class BrokenText(str):
    """A row's text that is not UTF-8, with replacement characters. ``raw``: its bytes as stored."""

    raw: bytes


def decoded(raw: bytes | bytearray | memoryview) -> str:
    """A row's text. SQLite keeps any bytes that a program wrote."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        data = bytes(raw)
        broken = BrokenText(data.decode(errors="replace"))
        broken.raw = data
        return broken


def is_utf8(text: str) -> bool:
    """Whether *text* can be encoded as UTF-8, which a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean(text: str) -> str:
    """Make *text* storable: NUL becomes ``\\x00``, a lone surrogate ``\\udcff``; the rest stays.

    PostgreSQL's text cannot hold NUL, and UTF-8 has no lone surrogates (Python makes them of undecodable file names).
    """
    text = text.replace("\0", r"\x00")
    return text if is_utf8(text) else text.encode(errors="backslashreplace").decode()


def cap(text: str, limit_bytes: int) -> str:
    """Return *text*, cleaned, in at most *limit_bytes* of UTF-8: head, a line that counts what was cut, and tail."""
    capped = CappedText(limit_bytes)
    capped.write(text)
    return capped.text() or ""


def visible(text: str) -> str:
    """Escape what could act on a terminal (``\\x1b[2J``, ``\\r``, bidi overrides); newlines and tabs stay.

    A backslash is not doubled: the result is for reading, and harmless whichever of the two it was.
    """
    return _UNSAFE.sub(_escape, text)


def one_line(text: str, limit: int) -> str:
    """Escape as ``visible`` does, newlines and tabs too, and cut to *limit* characters: one event stays one line."""
    # Cut first: nothing beyond it can be in the result, and the text may be megabytes.
    line = _UNSAFE_IN_A_LINE.sub(_escape, text[: limit + 1])
    return line if len(line) <= limit else line[: max(0, limit - 1)] + "…"[:limit]


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


class CappedText:
    """Append-only text that keeps its first and last bytes, *limit* in all, whatever is written.

    Safe to write to from several threads, since a handler may print from all of its own.
    """

    def __init__(self, limit: int = OUTPUT_LIMIT) -> None:
        self._limit = limit
        self._head_size = max(0, limit - _MARKER_ROOM) // 2
        self._head = bytearray()
        self._tail = bytearray()  # what came after the head; at most twice what is stored of it
        self._size = 0  # of everything written or skipped
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Append *text*, cleaned; return its length, as files do."""
        data = clean(text).encode()
        with self._lock:
            room = self._head_size - len(self._head) if len(self._head) == self._size else 0
            self._head += data[:room]
            self._tail += data[room:]
            self._size += len(data)
            keep = self._limit - len(self._head)
            if len(self._tail) > 2 * keep:
                del self._tail[: len(self._tail) - keep]
        return len(text)

    def skip(self, count: int) -> None:
        """Count *count* bytes that the caller never had in memory as cut. All later text is tail."""
        with self._lock:
            self._size += count
            self._tail.clear()

    def since(self, position: int, most: int) -> tuple[int, str]:
        """Return the text after the first *position* bytes, and where it begins, which is later if some is gone.

        At most the last *most* bytes.
        """
        with self._lock:
            size = self._size
            whole = len(self._head) + len(self._tail) == size
            # Do little under this lock: a loop with leases to renew waits for it, and so does every print.
            count = max(0, min(size - position, most, size if whole else len(self._tail)))
            data = bytes(self._tail[-count:]) if count <= len(self._tail) else bytes(self._head + self._tail)
        text = data[len(data) - count :].decode(errors="ignore")  # drops a character that was cut in two
        return size - len(text.encode()), text

    def text(self) -> str | None:
        """Return what was kept; None if nothing was ever written."""
        if self._size == 0:
            return None
        with self._lock:
            head, tail, size = bytes(self._head), bytes(self._tail), self._size
        if size <= self._limit:
            return (head + tail).decode()
        if self._limit <= _MARKER_ROOM:  # no room for the line in the middle
            return tail[-self._limit :].decode(errors="ignore") if self._limit > 0 else ""
        tail = tail[-(self._limit - _MARKER_ROOM - self._head_size) :]
        # Valid UTF-8 was cut at one end each, so "ignore" can only drop the cut character.
        first, last = head.decode(errors="ignore"), tail.decode(errors="ignore")
        left_out = size - len(first.encode()) - len(last.encode())
        return f"{first}\n… {left_out:,} bytes left out …\n{last}"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The word of *known* that was probably meant; *cutoff*: the least similarity, at most 1."""
    import difflib  # only for a mistake: most ticks have none

    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower()[:100], by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None
