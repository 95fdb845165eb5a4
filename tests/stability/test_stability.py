"""Names on which people rely change only on purpose. docs/reference/stability.md says how."""

from __future__ import annotations

import re

import pytest

from . import names


@pytest.mark.parametrize("name", names.LISTS)
def test_what_is_public_is_what_is_stored(name: str) -> None:
    stored = names.stored(name).read_text(encoding="utf-8")
    assert names.text_of(name) == stored, "read docs/reference/stability.md, then: python tests/stability/names.py"


def test_the_page_names_every_list_and_its_command() -> None:
    page = (names.ROOT / "docs/reference/stability.md").read_text(encoding="utf-8")
    assert set(re.findall(r"tests/stability/([\w-]+)\.txt", page)) == names.LISTS.keys()
    assert {file.stem for file in names.STORED.glob("*.txt")} == names.LISTS.keys()
    assert "python tests/stability/names.py" in page
