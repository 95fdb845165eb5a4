"""Write text as a YAML value for cronjobs.yaml."""

from __future__ import annotations

import json
import re
from typing import Final

from cronjobs.engine.config.yaml_nodes import UNREADABLE

# Quote the excluded words. Without quotes, one of the two YAML versions reads each of them as a boolean or null.
_PLAIN: Final = re.compile(r"(?!(?:null|none|true|false|yes|no|on|off|y|n)$)[A-Za-z/][A-Za-z0-9_./+-]*", re.IGNORECASE)


def can_hold(text: str) -> bool:
    """Return whether the file can contain *text*: no NUL, no lone surrogate, and not our reader's mark (UNREADABLE)."""
    return not any(character in ("\0", UNREADABLE) or "\ud800" <= character <= "\udfff" for character in text)


def written(text: str, *, plain: bool = True) -> str:
    """Return *text* as YAML that reads back as the same text, even if it contains ``${``.

    With *plain*, a simple word is written without quotes. Raises ValueError for text that YAML or our reader cannot
    hold.
    """
    if not can_hold(text):
        raise ValueError("the file cannot hold this text")
    if plain and _PLAIN.fullmatch(text):
        return text
    text = text.replace("${", "$${")
    if text.isprintable() and "'" not in text and ('"' in text or "\\" in text):
        return f"'{text}'"
    quoted = json.dumps(text, ensure_ascii=False)
    # YAML also ends lines at U+0085 and U+2028, and refuses many characters.
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)
