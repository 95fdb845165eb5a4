"""Errors of several lines, which sentences and lists have in one line with ``\\n`` in it, as lines again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cronjobs import masking
from cronjobs.text import one_line

LONGEST: Final = 4_000  # characters of an error that are looked at
ENOUGH: Final = 40  # of the end of the first line, to know it by
NEWLINE: Final = r"\n"


def in_lines(sentence: str, texts: Iterable[str | None]) -> str:
    """*sentence* with the newlines that the *texts* in it really have; another backslash stays one (``C:\\new``)."""
    for text in texts:
        first, *others = (one_line(line, LONGEST) for line in _lines(text))
        if first and others:
            sentence = _in_lines(sentence, first, others)
    return sentence


def _in_lines(sentence: str, first: str, others: Sequence[str]) -> str:
    """The text may be cut anywhere: as many lines of it as there are."""
    told, rest, begin = "", sentence, first[-ENOUGH:]
    while (place := rest.find(begin + NEWLINE)) >= 0:
        told, rest = told + rest[: place + len(begin)], rest[place + len(begin) :]
        for line in others:
            if not rest.startswith(NEWLINE):
                break
            told, rest = told + "\n", rest.removeprefix(NEWLINE)
            if not rest.startswith(line):
                break
            told, rest = told + line, rest.removeprefix(line)
    return told + rest


def beside(text: str | None) -> str:
    """The lines of *text* in one, for a cell: "no route to host / rsync: 12"."""
    return " / ".join(line.strip() for line in _lines(text) if line.strip())


def errors_of(facts: Mapping[str, Any]) -> Sequence[str | None]:
    """Return the errors that the sentences about an occurrence may quote. *facts* is explain's JSON."""
    job = facts.get("job")
    if not isinstance(job, Mapping):
        return ()
    return [job.get("last_error"), *(attempt.get("error") for attempt in job.get("attempts", ()))]


def _lines(text: str | None) -> list[str]:
    return masking.hide(str(text or "")[:LONGEST]).replace("\r\n", "\n").split("\n")
