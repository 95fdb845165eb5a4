"""Text as a value of cronjobs.yaml, for those who write such a file."""

from __future__ import annotations

import json
import re
from typing import Final

from cronjobs.config.yaml_nodes import NOT_PRINTABLE

_PLAIN: Final = re.compile(r"(?!(?:null|none)$)[A-Za-z/][A-Za-z0-9_./+-]*", re.IGNORECASE)


def written(text: str, *, plain: bool = True) -> str:
    """*text* so that the file's reader gives it back, ``${`` included; a mere word without quotes, if *plain*.

    Raises ValueError for a lone surrogate or a NUL, which no YAML can hold.
    """
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("it is not text that YAML can hold")
    if plain and _PLAIN.fullmatch(text):
        return text
    text = text.replace("${", "$${")
    if text.isprintable() and "'" not in text and ('"' in text or "\\" in text):
        return f"'{text}'"
    quoted = json.dumps(text, ensure_ascii=False)
    return NOT_PRINTABLE.sub(lambda odd: f"\\U{ord(odd[0]):08x}", quoted)
