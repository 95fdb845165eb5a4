"""No page has a dead link to a file; `mkdocs build --strict` in CI also checks those to headings."""

from __future__ import annotations

import pytest
import yaml
from support.pages import ROOT, Page

pytestmark = pytest.mark.either

PAGES = sorted(str(file.relative_to(ROOT)) for file in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])


def test_no_page_has_a_dead_link() -> None:
    assert len(PAGES) > 40
    assert {page: dead for page in PAGES if (dead := Page(page).dead_links())} == {}


def test_every_page_is_in_the_menu_of_the_site() -> None:
    def named(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        found = entry if isinstance(entry, list) else list(entry.values()) if isinstance(entry, dict) else []
        return [name for each in found for name in named(each)]

    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(named(menu)) == sorted(page.removeprefix("docs/") for page in PAGES if page.startswith("docs/"))
