"""After cleaning, any text from outside can be stored and shown anywhere."""

from __future__ import annotations

import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronjobs.text import CappedText, cap, clean, error_text, joined, one_line, visible

ANY_TEXT = st.text(st.characters())  # surrogates too


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain ünïcode 😀\n\x1b[31m", "plain ünïcode 😀\n\x1b[31m"),
        ("a\0b", r"a\x00b"),
        ("caf\udce9", r"caf\udce9"),
        ("\ud83d\ude00", r"\ud83d\ude00"),  # a pair that is no character in Python
    ],
)
def test_clean_text_keeps_all_that_can_be_stored(text: str, stored: str) -> None:
    assert clean(text) == stored


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("done 10%\rdone 99%", r"done 10%\rdone 99%"),
        ("\x9b31m and \x85", r"\x9b31m and \x85"),  # C1: an 8-bit CSI, and a line end
        ("user\u202etxt.exe\u2066", r"user\u202etxt.exe\u2066"),
        ("a\u2028b", r"a\u2028b"),
        ("\ud800", r"\ud800"),
        ("naïve 日本語 😀 👨‍👩‍👧", "naïve 日本語 😀 👨‍👩‍👧"),
    ],
)
def test_what_acts_on_a_terminal_is_shown_instead(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_forged_log_line_stays_inside_its_event() -> None:
    forged = 'x\n2026-01-01T00:00:00Z job.succeeded job_id=1\r\n{"event": "job.succeeded"}\u2028more\x85'
    assert one_line(forged, 200).splitlines() == [one_line(forged, 200)]
    assert one_line("a\n\tb", 20) == r"a\n\tb"


@pytest.mark.parametrize(("limit", "line"), [(10, "abcdefghij"), (9, "abcdefgh…"), (1, "…"), (0, "")])
def test_a_line_is_cut_with_an_ellipsis(limit: int, line: str) -> None:
    assert one_line("abcdefghij", limit) == line


@pytest.mark.parametrize(
    ("text", "limit", "line"),
    [
        ("whether default_transaction_read_only is set", 22, "whether…"),
        ("and whether default_transaction_read_only is set", 41, "and whether…"),
        ("check whether default_transaction is set", 37, "check whether default_transaction is…"),
        ("check whether default_transaction is set", 36, "check whether default_transaction…"),
        ("a " + "b" * 99, 80, "a " + "b" * 77 + "…"),
    ],
)
def test_a_line_is_cut_after_a_word_and_within_a_very_long_one(text: str, limit: int, line: str) -> None:
    assert one_line(text, limit) == line


@given(ANY_TEXT, st.integers(0, 300))
def test_one_line_is_one_printable_line_within_its_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    assert not re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", line)


@given(ANY_TEXT)
def test_clean_and_visible_text_is_utf8_without_nul(text: str) -> None:
    for safe in (clean(text), visible(text)):
        assert safe.encode().decode() == safe
        assert "\0" not in safe


def test_capped_text_says_how_much_is_missing_between_head_and_tail() -> None:
    text = "first line\n" + "x" * 100_000 + "\nlast line"
    capped = cap(text, 1000)
    head, marker, tail = re.split(r"\n(… [\d,]+ bytes left out …)\n", capped)
    assert head.startswith("first line\n")
    assert tail.endswith("\nlast line")
    assert len(head) + len(tail) + int(re.sub(r"\D", "", marker)) == len(text)
    assert len(capped.encode()) <= 1000
    assert marker == f"… {len(text) - len(head) - len(tail):,} bytes left out …"


@pytest.mark.parametrize("character", ["é", "日", "😀"])
@pytest.mark.parametrize("limit", range(100, 112))
def test_no_character_is_cut_in_two(character: str, limit: int) -> None:
    capped = cap(character * 500, limit)
    assert set(capped) - set("\n… 0123456789,bytesloutf") == {character}


@given(st.lists(ANY_TEXT, max_size=20), st.integers(0, 200))
def test_text_within_the_limit_is_whole_and_beyond_it_is_never_longer(parts: list[str], limit: int) -> None:
    capped, whole = CappedText(limit), clean("".join(clean(part) for part in parts))
    for part in parts:
        capped.write(part)
    text = capped.text() or ""
    assert len(text.encode()) <= limit
    assert text == whole or len(whole.encode()) > limit


def test_nothing_written_is_none() -> None:
    assert CappedText().text() is None
    assert cap("", 100) == ""


def test_a_flood_is_kept_in_bounded_memory() -> None:
    capped = CappedText(1000)
    for number in range(100_000):
        capped.write(f"line {number}\n")
    assert len(capped._head) + len(capped._tail) <= 4000
    assert (capped.text() or "").startswith("line 0\n")
    assert (capped.text() or "").endswith("line 99999\n")


def test_several_threads_may_write() -> None:
    capped = CappedText(200_000)
    threads = [threading.Thread(target=lambda: [capped.write("line\n") for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert capped.text() == "line\n" * 20_000


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("", ""),
        ("^", "^"),
        (" one line ", "one line"),
        ("refused\n\tIs the server running?\nAll failures were:\r\n- a: no\n\n- b: no\n",
         "refused; Is the server running? All failures were: - a: no; - b: no"),
        ('relation "t" does not exist\nLINE 1: SELECT * FROM t\n                      ^',
         'relation "t" does not exist; LINE 1: SELECT * FROM t'),
    ],
)  # fmt: skip
def test_a_message_of_several_lines_reads_as_one(message: str, said: str) -> None:
    """Of psycopg's errors, the line breaks were shown as "\\n\\t"."""
    assert joined(message) == said
    assert error_text(OSError(message)) == (f"OSError: {said}" if said else "OSError")
