"""A check's result: a word, a sentence, and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Grade = Literal["ok", "warning", "problem", "not applicable"]
SHOWN: Final = 5


@dataclass(frozen=True)
class Diagnosis:
    """``text``: what was found and what it means. ``fix``: what to do, or None if there is nothing to do."""

    status: Grade
    text: str
    fix: str | None = None


def ok(text: str) -> Diagnosis:
    return Diagnosis("ok", text)


def warning(text: str, fix: str) -> Diagnosis:
    return Diagnosis("warning", text, fix)


def problem(text: str, fix: str) -> Diagnosis:
    return Diagnosis("problem", text, fix)


def not_applicable(text: str) -> Diagnosis:
    return Diagnosis("not applicable", text)


def listed(what: Sequence[str], most: int = SHOWN) -> str:
    """ "a; b; c; and 3 more"."""
    more = [f"and {len(what) - most} more"] if len(what) > most else []
    return "; ".join([*what[:most], *more])
