"""Makes text from outside (output, errors, payloads) safe to store, to log and to print. Pure, no I/O.

``clean`` and ``cap`` are for text that is stored, ``one_line`` and ``visible`` for text that is printed. Stored text
keeps its colours and control characters. They are made harmless only when the text is printed.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Final

OUTPUT_LIMIT: Final = 64 * 1024  # the limit of one attempt's output in bytes of UTF-8
TRACEBACK_LIMIT: Final = 32 * 1024
ERROR_LIMIT: Final = 2 * 1024  # the limit of last_error, which is a short text for people, in bytes
WORD: Final = 60  # a longer word may be cut in its middle

# Matches characters that may move the cursor, end a line, or change the order of a line's characters. These are C0, DEL
# and C1 controls (ECMA-48); line and paragraph separators, where str.splitlines and log viewers end a line; and bidi
# controls (UAX 9; "Trojan Source", CVE-2021-42574). It also matches lone surrogates, which no terminal's encoding can
# represent.
_CONTROLS: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE: Final = re.compile(f"[{_CONTROLS}]")
_UNSAFE_IN_A_LINE: Final = re.compile(f"[\t\n{_CONTROLS}]")
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
_MARKER_ROOM: Final = 64  # reserve this many bytes for the line in the middle that says how many bytes were left out


class BrokenText(str):
    """Text from a row that is not UTF-8, with replacement characters. ``raw`` holds the stored bytes."""

    raw: bytes


def decoded(raw: bytes | bytearray | memoryview) -> str:
    """Decode a text from a row. In SQLite, the text may be any bytes that a program has written."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        data = bytes(raw)
        broken = BrokenText(data.decode(errors="replace"))
        broken.raw = data
        return broken


def is_utf8(text: str) -> bool:
    """Return whether *text* can be encoded as UTF-8. A text with a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean(text: str) -> str:
    """Make *text* storable. NUL becomes ``\\x00`` and a lone surrogate ``\\udcff``. Everything else stays the same.

    PostgreSQL cannot store NUL, and UTF-8 has no lone surrogates. (Python makes lone surrogates from file names that it
    cannot decode.)
    """
    text = text.replace("\0", r"\x00")
    return text if is_utf8(text) else text.encode(errors="backslashreplace").decode()


def cap(text: str, limit_bytes: int) -> str:
    """Return *text*, cleaned, in at most *limit_bytes*: its beginning, how much was cut, and its end."""
    capped = CappedText(limit_bytes)
    capped.write(text)
    return capped.text() or ""


def visible(text: str) -> str:
    """Escape whatever could control a terminal (``\\x1b[2J``, ``\\r``, bidi overrides). Newlines and tabs are kept.

    Backslashes are not doubled, so the result cannot be decoded again. Use the result only to show it to people.
    """
    return _UNSAFE.sub(_escape, text)


def one_line(text: str, limit: int) -> str:
    """Escape like ``visible``, and also newlines and tabs, so that an event stays on one line.

    Cut to *limit* characters, after a whole word unless the word is longer than WORD.
    """
    # Cut first, because the text may be megabytes long, and nothing after the limit can be in the result.
    line = _UNSAFE_IN_A_LINE.sub(_escape, text[: limit + 1])
    if len(line) <= limit:
        return line
    begin = line[: max(0, limit - 1)]
    # Half a name reads like another name. But do not leave out a long text without spaces.
    words = begin if line[len(begin)] == " " else begin[: begin.rfind(" ") + 1]
    return (words if words and len(begin) - len(words) <= WORD else begin).rstrip(" ") + "…"[:limit]


def joined(text: str) -> str:
    """Join the lines of a message with a semicolon, or only with a space after a line that ends with punctuation."""
    first, *others = [line for each in text.split("\n") if (line := each.strip(" \t\r"))] or [""]
    # A line with only "^" marks a column of the line above, which means nothing in a single line.
    lines = [first, *(line for line in others if line.strip("^"))]
    return "".join(f"{line} " if line[-1] in ".,:;?!" else f"{line}; " for line in lines[:-1]) + "".join(lines[-1:])


def message_of(error: BaseException) -> str:
    """Return the message of an exception from user code, its lines joined. Its own ``__str__`` may raise anything."""
    try:
        # join() returns a plain str, even if __str__ returned a subclass.
        return joined("".join([str(error)]))
    except BaseException:
        return "(its message could not be read)"


def error_text(error: BaseException, limit: int = 200) -> str:
    """Return the class and the message of an exception from user code, in one line. *limit* applies to the message."""
    words = one_line(message_of(error), limit)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


class CappedText:
    """Append-only text that keeps only its first and last bytes, at most *limit* in total.

    Several threads may write to the text at once, because a handler may print from all its threads.
    """

    def __init__(self, limit: int = OUTPUT_LIMIT) -> None:
        self._limit = limit
        self._head_size = max(0, limit - _MARKER_ROOM) // 2
        self._head = bytearray()
        # The last part of the text after the head. It is at most twice as long as the part that is returned.
        self._tail = bytearray()
        self._size = 0  # bytes written or skipped so far
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Append *text*, cleaned. Return the length of *text*, as files do."""
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
        """Count *count* bytes that the caller never read as left out. Later text goes into the tail."""
        with self._lock:
            self._size += count
            self._tail.clear()

    def since(self, position: int, most: int) -> tuple[int, str]:
        """Return at most the last *most* bytes of the text after byte *position*, and the position at which they begin.

        If some of that text is no longer kept, the returned position is later than *position*.
        """
        with self._lock:
            size = self._size
            whole = len(self._head) + len(self._tail) == size
            # Hold this lock only briefly. Every print waits for it, and so does the loop, which has leases to renew.
            count = max(0, min(size - position, most, size if whole else len(self._tail)))
            data = bytes(self._tail[-count:]) if count <= len(self._tail) else bytes(self._head + self._tail)
        # errors="ignore" drops a character that was cut in two.
        text = data[len(data) - count :].decode(errors="ignore")
        return size - len(text.encode()), text

    def text(self) -> str | None:
        """Return the text that was kept, or None if nothing was ever written."""
        if self._size == 0:
            return None
        with self._lock:
            head, tail, size = bytes(self._head), bytes(self._tail), self._size
        if size <= self._limit:
            return (head + tail).decode()
        if self._limit <= _MARKER_ROOM:  # the limit leaves no room for the line in the middle
            return tail[-self._limit :].decode(errors="ignore") if self._limit > 0 else ""
        tail = tail[-(self._limit - _MARKER_ROOM - self._head_size) :]
        # The head and the tail were each cut at one end, so "ignore" can only drop a character that was cut in two.
        first, last = head.decode(errors="ignore"), tail.decode(errors="ignore")
        left_out = size - len(first.encode()) - len(last.encode())
        return f"{first}\n… {left_out:,} bytes left out …\n{last}"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the word of *known* that *word* probably means, or None. *cutoff* is the minimum similarity, at most 1."""
    import difflib  # imported only for a misspelt word, since most ticks have none

    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower()[:100], by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None
