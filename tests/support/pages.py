"""The code of a documentation page, for the test that executes it, so that the printed code works."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A fenced block, and the ``##`` heading above it."""

    language: str
    text: str
    heading: str


@dataclass(frozen=True)
class Page:
    """A Markdown file, named by its path in the repository."""

    path: str

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text()

    def blocks(self, language: str | None = None) -> list[Block]:
        """Return the page's fenced blocks in order, those of one *language* or all."""
        found, heading, last = [], "", 0
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL):
            headings = re.findall(r"^## (.*)$", self.text[last : match.start()], re.MULTILINE)
            heading, last = (headings or [heading])[-1], match.end()
            if language in (None, match[1]):
                found.append(Block(match[1], match[2], heading))
        return found

    def block(self, language: str, says: str) -> str:
        """Return the one block of *language* that contains *says*."""
        [found] = [one.text for one in self.blocks(language) if says in one.text]
        return found

    def counts(self) -> dict[str, int]:
        """Return the number of blocks by language.

        A test that states these numbers notices a new block that nothing executes.
        """
        languages = [one.language for one in self.blocks()]
        return {language: languages.count(language) for language in languages}

    def table(self, heading: str, nth: int = 0) -> list[dict[str, str]]:
        """Return the rows of the *nth* table directly below *heading* (of any level).

        A row maps header words to cells.
        """
        [section] = [
            part for part in re.split(r"^#+ ", self.text, flags=re.MULTILINE) if part.startswith(f"{heading}\n")
        ]
        table = re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE)[nth]
        header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        return [dict(zip(header, row, strict=True)) for row in rows]

    def dead_links(self) -> list[str]:
        links = re.findall(r"\]\(([^)#]+)[^)]*\)", self.text)
        here = (ROOT / self.path).parent
        return [link for link in links if "://" not in link and not (here / link).exists()]
