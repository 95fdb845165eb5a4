"""The result of a check: a status, a text about what the check found, and how to fix a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Grade = Literal["ok", "warning", "problem", "not applicable"]
SHOWN: Final = 5


@dataclass(frozen=True)
class Diagnosis:
    """A check's result. ``text`` says what the check found, and what that means. ``fix`` says how to mend a fault."""

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
    """Join the first *most* items, as in "a; b; c; and 3 more"."""
    more = [f"and {len(what) - most} more"] if len(what) > most else []
    return "; ".join([*what[:most], *more])
