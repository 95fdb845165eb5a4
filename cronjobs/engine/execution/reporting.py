"""The reports of a running attempt.

The attempt's worker writes the reports, and the loop reads them when it renews the lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cronjobs.engine.rules.lease import Lease, Report
from cronjobs.engine.rules.progress import LIVE_LIMIT, HowFar, Reported, progress_line
from cronjobs.masking import longest_form, mask, mask_urls, safe_until
from cronjobs.text import OUTPUT_LIMIT, CappedText, clean

# Read at most this many bytes of new output, because ``CappedText`` may keep only this much of the output's end.
LOOK_BACK: Final = OUTPUT_LIMIT // 2
# Hold back at most this many bytes of output while waiting for the end of a possible secret.
MOST_HELD: Final = 4 * LIVE_LIMIT
# The longest progress line that is read, in characters.
LONGEST_LINE: Final = 512
_SPACE: Final = " \t\r\n"


class Reporting:
    """One attempt's progress and output so far. ``output`` collects the output, or is None if nothing collects it yet.

    ``listener`` shows progress to a person who is watching. The thread that reports calls it at once with each report.
    """

    # Class attributes, because a run of many short jobs makes thousands of these objects, and few report anything.
    output: CappedText | None = None
    listener: Callable[[HowFar], None] | None = None
    # The progress that the tick last showed to a person who is watching.
    shown: HowFar | None = None
    # The last report and its time, then a first value and its time, from which the pace is computed. Since that first
    # value, the total stayed the same and the progress never went back. The tuple is replaced as a whole, so it needs
    # no lock.
    _said: tuple[HowFar, float, float, float] | None = None
    _unended = ""  # the unfinished last line of a command's output
    _taken = 0  # the number of bytes of the output that the loop has read
    # Output that was read but is not masked yet, because its end may be the beginning of a secret.
    _held = ""
    _tail = ""  # the last part of the output, masked
    # True if a word was too long to hold back. Then the next output begins in the middle of that word.
    _torn = False
    # The number of output bytes up to the end of the tail, counted before masking.
    _end = 0
    _written: Reported | None = None

    @property
    def progress(self) -> HowFar | None:
        return None if self._said is None else self._said[0]

    def say(self, how_far: HowFar, at: float) -> None:
        """Store a handler's progress report. *at* is when the report was made, on the monotonic clock."""
        first, first_at = how_far.done or 0, at
        if self._said is not None:
            before, _, *since = self._said
            if how_far.of == before.of and (how_far.done or 0) >= (before.done or 0):
                first, first_at = since
        self._said = (how_far, at, first, first_at)
        if self.listener is not None:
            self.listener(how_far)

    def read(self, text: str, at: float) -> None:
        """Read a command's new output. Only the last progress line in it counts."""
        *lines, rest = (self._unended + text).split("\n")
        self._unended = rest[:LONGEST_LINE]
        how_far = next((how_far for line in reversed(lines) if (how_far := progress_line(line[:LONGEST_LINE]))), None)
        if how_far is not None:
            self.say(how_far, at)

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def news(self, lease: Lease, claimed: float, secrets: frozenset[str]) -> Report | None:
        """Return a report if anything is new since the last written report. Otherwise return None.

        *claimed* is when the attempt was claimed, on the monotonic clock.
        """
        said = self._said
        if said is None and self.output is None:
            return None
        if self.output is not None:
            self._read_output(self.output, secrets)
        reported = Reported(output_end=self._end)
        if said is not None:
            how_far, at, first, first_at = said
            if how_far.note is not None:
                how_far = how_far._replace(note=mask(how_far.note, secrets))
            reported = Reported(how_far, max(0.0, at - claimed), first, max(0.0, first_at - claimed), self._end)
        if reported == (self._written or Reported()):
            return None
        old_output = self._written is not None and self._written.output_end == self._end
        return Report(lease, reported, None if old_output else self._tail)

    def output_so_far(self, secrets: frozenset[str]) -> str | None:
        """Return all output so far, masked. If a secret may begin at the end of the output, leave out that end."""
        text = None if self.output is None else self.output.text()
        return clean(mask(text[: safe_until(text, secrets)], secrets)) or None if text else None

    def written(self, report: Report) -> None:
        """Note that *report* has been committed to the attempt's row."""
        self._written = report.reported

    def _read_output(self, output: CappedText, secrets: frozenset[str]) -> None:
        """Mask new output, and keep its last part. Hold back the end of the output if a secret may begin there."""
        start, new = output.since(self._taken, LOOK_BACK)
        left_out, self._taken = start - self._taken, start + len(new.encode())
        text = self._held + new
        if left_out > 0 or self._torn:
            # The new output may begin in the middle of a secret, or of a URL.
            whole = _from_a_word_on(new[longest_form(secrets) :])
            self._end += left_out + len(text.encode()) - len(whole.encode())
            self._tail, self._torn, text = "", not whole, whole
        ready = safe_until(text, secrets)
        if len(text) - ready > MOST_HELD:
            self._end += len(text.encode())
            self._held, self._tail, self._torn = "", "", True
            return
        # Mask URLs even if this part of the text does not begin like a URL, because it may be the remainder of a URL.
        masked, self._held = mask_urls(mask(text[:ready], secrets)), text[ready:]
        self._end += len(masked.encode())
        self._tail = (self._tail + masked).encode()[-LIVE_LIMIT:].decode(errors="ignore")


def _from_a_word_on(text: str) -> str:
    ends = [place for character in _SPACE if (place := text.find(character)) >= 0]
    return text[min(ends) + 1 :] if ends else ""
