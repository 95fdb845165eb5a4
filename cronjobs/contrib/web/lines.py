"""Split errors into lines again.

Sentences and lists show an error on one line, in which ``\\n`` stands for each newline. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cronjobs import masking
from cronjobs.text import one_line

LONGEST: Final = 4_000  # read only this many characters of an error
ENOUGH: Final = 40  # this many characters at the end of an error's first line identify the error
NEWLINE: Final = r"\n"


def in_lines(sentence: str, texts: Iterable[str | None]) -> str:
    """Return *sentence*. Where it quotes one of the *texts*, restore the newlines of that text.

    Leave other backslashes alone (``C:\\new``).
    """
    for text in texts:
        first, *others = (one_line(line, LONGEST) for line in _lines(text))
        if first and others:
            sentence = _in_lines(sentence, first, others)
    return sentence


def _in_lines(sentence: str, first: str, others: Sequence[str]) -> str:
    """Restore the newlines of one text in *sentence*. The sentence may quote only the beginning of the text."""
    shown, rest, begin = "", sentence, first[-ENOUGH:]
    while (place := rest.find(begin + NEWLINE)) >= 0:
        shown, rest = shown + rest[: place + len(begin)], rest[place + len(begin) :]
        for line in others:
            if not rest.startswith(NEWLINE):
                break
            shown, rest = shown + "\n", rest.removeprefix(NEWLINE)
            if not rest.startswith(line):
                break
            shown, rest = shown + line, rest.removeprefix(line)
    return shown + rest


def beside(text: str | None) -> str:
    """Join the lines of *text* for a table cell, as in "no route to host / rsync: 12"."""
    return " / ".join(line.strip() for line in _lines(text) if line.strip())


def errors_of(facts: Mapping[str, Any]) -> Sequence[str | None]:
    """Return the errors that the sentences about an occurrence may quote. *facts* is explain's JSON."""
    job = facts.get("job")
    if not isinstance(job, Mapping):
        return ()
    return [job.get("last_error"), *(attempt.get("error") for attempt in job.get("attempts", ()))]


def _lines(text: str | None) -> list[str]:
    return masking.hide(str(text or "")[:LONGEST]).replace("\r\n", "\n").split("\n")
