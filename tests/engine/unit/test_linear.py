"""Code that reads texts from strangers or handlers takes time in proportion to the length of the text.

Eight times the text may take at most 24 times as long. Linear code takes 8 times as long, and quadratic code 64 times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cases import judge

from cronjobs import masking, text
from cronjobs.engine.database import own_transaction
from cronjobs.engine.execution import process_outcome
from cronjobs.engine.rules import error_groups, progress
from cronjobs.engine.rules.failed_job import last_own_line

SHORT, TIMES, AT_MOST = 4_000, 8, 24
SECRETS = ["abcdefghijklmnop", "a" * 500 + "b", "://user:pass"]
READERS: dict[str, Callable[[str], Any]] = {
    "normalised": error_groups._normalised.__wrapped__,
    "url_passwords": masking.url_passwords,
    "mask_urls": masking.mask_urls,
    "option_secrets": masking.option_secrets,
    "mask": lambda words: masking.mask(words, SECRETS),
    "safe_until": lambda words: masking.safe_until(words, SECRETS),
    "is_secret_name": masking.is_secret_name,
    "visible": text.visible,
    "one_line": lambda words: text.one_line(words, len(words)),
    "cap": lambda words: text.cap(words, 65536),
    "last_own_line": lambda words: last_own_line(words, Path("/srv/app")),
    "ends of a transaction": own_transaction._ENDS.match,
    "colours": lambda words: process_outcome._COLOURS.sub("", words),
    "progress": progress._LINE.fullmatch,
}
PIECES = [
    *(
        "a",
        ".",
        "-",
        "_",
        "1",
        "@",
        ":",
        "/",
        "//",
        "://",
        "a://",
        "a://:",
        "a://u:",
        "a@",
        "a@a.",
        "a.a",
        "'",
        '"',
        "`",
    ),
    *(
        "“",
        "”",
        "«",
        "»",
        "<n>",
        "<n>.",
        "error ",
        "error=",
        "sqlstate ",
        "http/1",
        "?password=",
        "&",
        "?a",
        "=-c a.b=",
        "https://",
        "=",
        " ",
        "\t",
    ),
    *("/*", "*/", "/**/", "--", "--\n", ";", "\x1b[", "0;", "\\", "::progress ", "1.1", '  File "', '", line 1, in '),
]


def cost(read: Callable[[str], Any], words: str) -> float:
    """Seconds of this process, not of the clock: the machine may be busy."""
    took = []
    for _ in range(3):
        began = time.process_time()
        read(words)
        took.append(time.process_time() - began)
    return min(took)


def is_linear(read: Callable[[str], Any], piece: str, before: str = "") -> bool:
    short, long = (before + (piece * size)[:size] for size in (SHORT, SHORT * TIMES))
    first = cost(read, short)
    return first < 0.25 and cost(read, long) <= AT_MOST * max(first, 0.0005)


@pytest.mark.parametrize("reader", READERS)
def test_a_piece_that_is_repeated_costs_no_more_than_its_length(reader: str) -> None:
    assert [piece for piece in PIECES if not is_linear(READERS[reader], piece)] == []


def test_any_pieces_one_after_another_cost_no_more_than_their_length() -> None:
    def case(random: random.Random) -> None:
        piece = "".join(random.choices(PIECES, k=random.randint(1, 4)))
        before = "".join(random.choices(PIECES, k=random.randint(0, 2)))
        reader = random.choice([*READERS])
        assert is_linear(READERS[reader], piece, before), (reader, before, piece)

    judge(case, few=30)


@pytest.mark.parametrize(
    ("words", "passwords"),
    [
        ("postgresql://u:se@cret@host/db", {"se@cret"}),
        ("a://b:c://d:pass1word@h", {"c://d:pass1word"}),
        ("see http://x:8080/ and b://u:word@h, 'c://v:other@h'", {"word", "other"}),
        ("no@at://u:pass", set()),
        ("a@b postgresql://u:p%40ss@h", {"p%40ss", "p@ss"}),
    ],
)
def test_the_passwords_of_urls_are_found_as_people_write_them(words: str, passwords: set[str]) -> None:
    assert masking.url_passwords(words) == passwords
