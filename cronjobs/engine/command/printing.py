"""Prints lines to stdout and stderr, JSON, and colours where a terminal shows them.

Anybody may have written the texts in the rows: secrets are masked, nothing on stderr acts on a terminal, and JSON is
ASCII.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from cronjobs import masking
from cronjobs.text import visible

SGR: Final = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bright_black": 90}  # ECMA-48


def echo(text: str) -> None:
    """Print to stdout. A closed or full stdout never changes what a command does."""
    _print(sys.stdout, text)


def complain(text: str, *, is_safe: bool = False) -> None:
    """Print to stderr, likewise. It goes into mails, so nothing in it may act on its reader.

    *is_safe*: lines of ``table``, whose cells are safe and may have colours.
    """
    _print(sys.stderr, text if is_safe else visible(text))


def _print(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    text = masking.hide(text)
    with suppress(OSError):
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:  # cron's locale is C: escape what ASCII cannot hold instead of losing it
            stream.write(text.encode("ascii", "backslashreplace").decode() + "\n")
        except ValueError:  # closed
            return
        stream.flush()


def echo_json(value: Any) -> None:
    echo(json_text(value))


def json_text(value: Any) -> str:
    """*value* as JSON: instants in ISO 8601, UTC. ASCII, so no stored text can act on a terminal."""
    return json.dumps(masking.hide_in(value), default=_encode, indent=2)


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    reason = getattr(value, "reason", None)  # payload.BadJson: plain SQL wrote what nobody can read
    return {"unreadable": reason} if reason is not None else str(value)


def is_terminal(name: str = "stdout") -> bool:
    try:
        stream = getattr(sys, name)
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def coloured(text: str, colour: str | None, stream: str = "stdout") -> str:
    """Whether to use colour: only on a terminal, and never against NO_COLOR (no-color.org)."""
    if colour is None or not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{SGR[colour]}m{text}\x1b[0m"
