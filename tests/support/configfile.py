"""Read a cronjobs.yaml in the working folder. The tests of the configuration share this module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.errors import ConfigError

DATABASE = "database: sqlite:///x.db\n"


def read(text: str | bytes, environ: dict[str, str] | None = None, **options: Any) -> Settings:
    Path("cronjobs.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return load(None, environ=environ or {}, **options)


def problems(text: str | bytes, environ: dict[str, str] | None = None, **options: Any) -> list[str]:
    """Return the problems of a file that can be used."""
    return [str(problem) for problem in read(text, environ, **options).problems]


def refusal(text: str | bytes, environ: dict[str, str] | None = None, **options: Any) -> list[str]:
    """Return the error of a file that cannot be used."""
    with pytest.raises(ConfigError) as refused:
        read(text, environ, **options)
    assert str(refused.value).splitlines() == [str(problem) for problem in refused.value.problems]
    return [str(problem) for problem in refused.value.problems]


def with_examples(text: str) -> str:
    """Return the starter's text with its examples uncommented."""
    return re.sub(r"(?m)^#(?=[^ ]|  )", "", text)


def cases(table: str) -> list[tuple[str, str]]:
    """Parse cases: each is some YAML, with the expected message indented below it."""
    found: list[tuple[str, str]] = []
    for line in table.strip().splitlines():
        if line.startswith("    "):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}".strip())
        else:
            found.append((line, ""))
    return found
