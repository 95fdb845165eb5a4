"""Regular expressions that are compiled at their first use."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import cronjobs
from cronjobs import patterns
from cronjobs.patterns import late

PACKAGE = Path(cronjobs.__file__).parent


def test_a_pattern_is_compiled_when_it_is_used_and_then_is_as_any_other() -> None:
    pattern, wrong = late("(a)(b)", re.IGNORECASE), late("(")
    assert "fullmatch" not in vars(pattern)
    assert pattern.sub(r"\2\1", "xAB") == "xBA"
    assert vars(pattern)["sub"] == re.compile("(a)(b)", re.IGNORECASE).sub
    assert (pattern.pattern, pattern.groups) == ("(a)(b)", 2)
    with pytest.raises(re.error):
        wrong.match("a")


def test_every_pattern_of_ours_compiles() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "import late" in path.read_text()]
    names = ["cronjobs." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in files]
    found = [each for name in names for each in vars(import_module(name)).values() if isinstance(each, patterns._Late)]
    assert len(found) > 30
    for each in found:
        assert isinstance(each.pattern, str)
