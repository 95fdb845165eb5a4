"""Render templates, in which every value is safe to show, and an undefined name is an error.

Anybody may have written the texts in the database. So mask secrets, make control characters visible, and escape markup.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cronjobs import masking
from cronjobs.desk.insight import formatting
from cronjobs.engine.rules.error_groups import class_and_text
from cronjobs.model import rough, seconds_text
from cronjobs.text import decoded, visible

PACKAGE = "cronjobs.contrib.web"
LONGEST_ERROR = 4_000  # read only this many characters of an error


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    words: list[Callable[..., object]] = [
        formatting.counted,
        formatting.died_lost,
        formatting.host_of,
        formatting.key_text,
        formatting.ran_for,
        formatting.without_attempts,
        formatting.safe,
        formatting.status_word,
        formatting.took,
        formatting.tries,
        beside,
        class_and_text,
        rough,
        seconds_text,
    ]
    made.globals |= {word.__name__: word for word in words}
    return made


def shown(value: Any) -> Any:
    """Return *value* as text that is safe to show. Markup of a template's own macro stays as it is."""
    if value is None:
        return ""
    if isinstance(value, int) or hasattr(value, "__html__"):
        return value
    # SQLite stores any type in any column, so the value may be bytes.
    return visible(masking.hide(decoded(value) if isinstance(value, bytes) else str(value)))


def beside(text: str | None) -> str:
    """Join the lines of *text* for a table cell, as in "no route to host / rsync: 12"."""
    # Mask before splitting, because a secret may span several lines.
    lines = masking.hide(str(text or "")[:LONGEST_ERROR]).split("\n")
    return " / ".join(line.strip() for line in lines if line.strip())


def rendered(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)
