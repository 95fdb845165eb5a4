"""The usual spellings of a secret, and a check whether a text shows a part of one."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

ODD: Final = "qzv\"w'\\jx%+/=é kh-7391-Tail"

SPELLINGS: Final[Mapping[str, Callable[[str], str]]] = {
    "plain": str,
    "percent": lambda text: quote(text, safe=""),
    "plus": quote_plus,
    "repr": repr,
    "json": json.dumps,
    "utf8": lambda text: json.dumps(text, ensure_ascii=False),
    "bytes": lambda text: repr(text.encode()),
    "base64": lambda text: b64encode(text.encode()).decode(),
    "basic": lambda text: b64encode(b"u:" + text.encode()).decode(),
    "basic2": lambda text: b64encode(b"x" + text.encode()).decode(),
}


def seen_in(text: str, spellings: Mapping[str, str]) -> set[str]:
    """Return the spellings of which eight consecutive characters occur in *text*."""
    return {
        name for name, spelt in spellings.items() if any(spelt[at : at + 8] in text for at in range(len(spelt) - 7))
    }
