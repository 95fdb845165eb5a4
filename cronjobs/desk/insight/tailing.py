"""Decide what ``jobs tail`` prints next.

Each part of the output and the size of each gap are printed once. All functions here are pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# How many of the last printed characters to keep, to find them again in the stored output.
REMEMBERED: Final = 1024
_LEFT_OUT: Final = re.compile(r"\n… ([\d,]+) bytes left out …\n")  # the mark that text.CappedText writes


class TailPart(NamedTuple):
    """A text to print, and how many bytes are missing before it. If any are missing, first print their number."""

    left_out: int
    text: str


class Tail:
    """The position up to which one attempt's output has been printed.

    Positions count bytes of the masked output. Masking may have changed the length of a part that was never printed, so
    a position can be wrong. Therefore we search the stored output for the text that was printed last.
    """

    def __init__(self) -> None:
        self.end = 0
        self._last = ""

    def live(self, text: str, end: int) -> TailPart:
        """Return the new part of the live output *text*, which ends at byte *end*."""
        data = text.encode()
        start, new = max(0, end - len(data)), end - self.end
        if new <= 0:
            return TailPart(0, "")
        if len(data) > end or new >= len(data):
            return self._print(max(0, start - self.end), text, end)
        return self._print(0, data[-new:].decode(errors="ignore"), end)

    def stored(self, output: str) -> list[TailPart]:
        """Return the new parts of *output*, the attempt's whole output."""
        marker = _LEFT_OUT.search(output)
        if marker is None:
            return [TailPart(0, output[self._place_in(output, self.end) :])]
        head, tail = output[: marker.start()], output[marker.end() :]
        missing, head_size = int(marker[1].replace(",", "")), len(head.encode())
        after = head_size + missing
        if self.end < head_size or (self._last and head.endswith(self._last)):
            return [TailPart(0, head[self._place_in(head, self.end) :]), TailPart(missing, tail)]
        if self.end <= after and self._last not in tail:
            return [TailPart(after - self.end, tail)]
        return [TailPart(0, tail[self._place_in(tail, self.end - after) :])]

    def _place_in(self, output: str, expected: int) -> int:
        """Return the position in characters after the text printed last.

        *expected*: the approximate position in bytes.
        """
        place = len(output.encode()[: max(0, expected)].decode(errors="ignore"))
        if not self._last:
            return place
        # Find overlapping matches too, since a text such as a row of dots may match at many places.
        ends = (each.start() + len(self._last) for each in re.finditer(f"(?={re.escape(self._last)})", output))
        return min(ends, key=lambda each: abs(each - place), default=place)

    def _print(self, left_out: int, text: str, end: int) -> TailPart:
        self.end, self._last = end, (text if left_out else self._last + text)[-REMEMBERED:]
        return TailPart(left_out, text)
