"""Words that need a shell are distinguished from plain arguments."""

from __future__ import annotations

import pytest

from cronjobs.engine.rules.shell_words import as_shell_line, list_for, shell_word


@pytest.mark.parametrize(
    "word", [">", ">>", "2>&1", ">/dev/null", "2>", "<", "|", "&&", "||", ";", "&", "$HOME", "$(date)", "`date`"]
)
def test_a_word_for_a_shell_is_found(word: str) -> None:
    assert shell_word(["pg_dump", "app", word, "x"]) == word


@pytest.mark.parametrize("word", ["->", "a>b", "a|b", "x;y", "--filter=a&b", "$5.00", "<html>", "*.py", "it's", ""])
def test_what_an_argument_may_well_be_is_left_alone(word: str) -> None:
    assert shell_word(["grep", word]) is None


def test_a_shell_that_is_started_is_left_alone() -> None:
    assert shell_word(["sh", "-c", "pg_dump app > x && gzip x"]) is None
    assert shell_word(["/bin/bash", "-c", "$HOME/bin/poll"]) is None
    assert shell_word(["bash", "-lc", "`poll`"]) is None
    assert shell_word(["sh", "-c", "$HOME/bin/poll", ">", "log"]) == ">"


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("pg_dump app", "[pg_dump, app]"),
        ("find /tmp -name 'a b' -mtime +7", '[find, /tmp, -name, "a b", -mtime, +7]'),
        ("pg_dump app > /b/x.sql", '[sh, -c, "pg_dump app > /b/x.sql"]'),
        ("rm *.tmp", '[sh, -c, "rm *.tmp"]'),
        ("say 'not closed", '[say, "\'not", closed]'),
    ],
)
def test_a_line_becomes_a_list(line: str, written: str) -> None:
    assert list_for(line) == written


def test_a_list_becomes_the_line_that_was_meant() -> None:
    assert as_shell_line(["pg_dump", "my app", ">", "/b/x.sql"]) == """[sh, -c, "pg_dump 'my app' > /b/x.sql"]"""
