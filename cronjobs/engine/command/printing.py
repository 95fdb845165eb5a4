"""Print lines to stdout and stderr, and JSON. Use colours only on a terminal.

Anyone may have written the texts in the database. So secrets are masked, texts on stderr cannot control a terminal, and
JSON is written in ASCII.
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

SGR: Final = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bright_black": 90}  # see ECMA-48


def echo(text: str) -> None:
    """Print to stdout. The command continues even if stdout is closed or full."""
    _print(sys.stdout, text)


def complain(text: str, *, is_safe: bool = False) -> None:
    """Print to stderr.

    The text may be mailed, so everything that could control a reader's terminal is escaped. Pass *is_safe* for lines of
    ``table``, whose cells are already escaped and may have colours.
    """
    _print(sys.stderr, text if is_safe else visible(text))


def _print(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    text = masking.hide(text)
    with suppress(OSError):
        try:
            stream.write(text + "\n")
        # Under cron, the locale is C, so escape characters that are not ASCII.
        except UnicodeEncodeError:
            stream.write(text.encode("ascii", "backslashreplace").decode() + "\n")
        except ValueError:  # the stream is closed
            return
        stream.flush()


def echo_json(value: Any) -> None:
    echo(json_text(value))


def json_text(value: Any) -> str:
    """Return *value* as ASCII JSON, which cannot control a terminal, with instants in ISO 8601 in UTC."""
    return json.dumps(masking.hide_in(value), default=_encode, indent=2)


def _encode(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    # *value* may be a payload.BadJson, which stands for unreadable JSON that plain SQL wrote.
    reason = getattr(value, "reason", None)
    return {"unreadable": reason} if reason is not None else str(value)


def is_terminal(name: str = "stdout") -> bool:
    try:
        stream = getattr(sys, name)
        return stream is not None and stream.isatty()
    except ValueError:  # the stream is closed
        return False


def coloured(text: str, colour: str | None, stream: str = "stdout") -> str:
    """Return *text* in *colour*. Without a terminal, or with NO_COLOR (no-color.org), return it unchanged."""
    if colour is None or not is_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{SGR[colour]}m{text}\x1b[0m"
