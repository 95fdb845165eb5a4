"""YAML's traps: each is refused with its place and the fix, by both of PyYAML's loaders."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from support.configfile import problems, refusal

from cronjobs.engine.config import yaml_nodes
from cronjobs.engine.config.yaml_nodes import Flaw, Mapping, Scalar, decode, parse


@pytest.fixture(autouse=True, params=["CSafeLoader", "SafeLoader"])
def in_folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_nodes, "_Loader", getattr(yaml, request.param))
    monkeypatch.chdir(tmp_path)


QUOTE = "a cron expression must be quoted: cron:"

# The lines of a file that has its database, and what is said of it.
TRAPS = [
    ("s:\n  a:\n    cron: * * * * *", [f'4:11: {QUOTE} "* * * * *"']),
    ("s:\n  a:\n    cron: */5 2 * * mon-fri  # work", [f'4:11: {QUOTE} "*/5 2 * * mon-fri"']),
    ("s: {a: {cron: * * * * *, job: x}}", [f'2:15: {QUOTE} "* * * * *"']),
    ("s: {cron: */5,7 * * * 1,2}", [f'2:11: {QUOTE} "*/5,7 * * * 1,2"']),
    ("cron: *5 * * * *", [f'2:7: {QUOTE} "*5 * * * *"']),
    ("cron: @daily", [f'2:7: {QUOTE} "@daily"']),
    ("s: {cron: @daily, job: x}", [f'2:11: {QUOTE} "@daily"']),
    ("é: {ü: * * * * *}", [f'2:8: {QUOTE} "* * * * *"']),
    ("s:\r\n  cron: * * * * *\r\n  t: @hourly\r\n", [f'3:9: {QUOTE} "* * * * *"', f'4:6: {QUOTE} "@hourly"']),
    ("a: &x 1", ["2:4: an anchor (&) is not allowed: write the value out, or quote it"]),
    ("a: &x {}", ["2:4: an anchor (&) is not allowed: write the value out, or quote it"]),
    ("a: *x", ["2:4: an alias (*) is not allowed: write the value out, or quote it"]),
    ("a: *", ['2:4: a value that begins with * must be quoted: "*…"']),
    ("a: @", ['2:4: a value that begins with @ must be quoted: "@…"']),
    ("a: `b`", ['2:4: a value that begins with ` must be quoted: "`…"']),
    ("a: %b", ['2:4: a value that begins with % must be quoted: "%…"']),
    ("<<: {a: 1}", ["2:1: merge keys (<<) are not allowed: write the keys out"]),
    ("a: !!python/name:os.system x", ["2:4: the tag !!python/name:os.system is not allowed: delete it"]),
    ("a: !secret x", ["2:4: the tag !secret is not allowed: delete it"]),
    ("a: !!binary x", ["2:4: the tag !!binary is not allowed: delete it"]),
    ("? [a]\n: 1", ["2:3: a key is plain text: quote it if it begins with [ or {"]),
    ("---\na: 1", ["2:1: a second document begins here: put it into a file of its own"]),
    ("imports:\n\t- x", ["3:1: a tab is not allowed here: indent with spaces"]),
    ("a:\n  b: 1\n\tc: 2", ["4:1: a tab is not allowed here: indent with spaces"]),
    ("a: {b: ${X}}", ['2:9: inside {…} and […] a variable must be quoted: "${NAME}"']),
    ("a: b: c", ['2:5: a second ": " in this line, or wrong indentation: quote the value, or line the keys up']),
    ("a: " + "[" * 20 + "]" * 20, ["2:23: values are nested deeper than 20 levels"]),
    ('a: "x\\0y"', ["2:4: an escape sequence in this value does not stand for a valid character: delete it"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "messages"), TRAPS, ids=[text for text, _ in TRAPS])
def test_a_trap_is_refused_with_its_place_and_the_fix(text: str, messages: list[str]) -> None:
    said = refusal(f"database: sqlite:///x.db\n{text}\n")
    assert [line for line in said if "unknown key" not in line] == [f"cronjobs.yaml:{message}" for message in messages]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", ': the file is empty: run "cronjobs init" in an empty folder to see what belongs in it'),
        (b"# nothing yet\n", ': the file is empty: run "cronjobs init" in an empty folder to see what belongs in it'),
        (b"- a\n", ':1:1: the file must be a mapping: begin with a key such as "database:"'),
        (b"\nsome words\n", ':2:1: the file must be a mapping: begin with a key such as "database:"'),
        (b"a: \xc3\xa4\nb: \xff", ":2:4: this is not UTF-8: save the file as UTF-8"),
        (b"\xef\xbb\xbfa: \xff", ":1:4: this is not UTF-8: save the file as UTF-8"),
        ("a: 1".encode("utf-16"), ": the file is UTF-16: save it as UTF-8"),
        (b"a: 1\nb: x\0", ":2:5: the character U+0000 is not allowed: delete it"),
        (b"a: \x1b[0m", ":1:4: the character U+001B is not allowed: delete it"),
        (b"a: " + b"x" * (1024 * 1024), ": the file is larger than 1 MiB"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_file_that_is_no_mapping_of_text_is_refused(data: bytes, message: str) -> None:
    assert refusal(data) == [f"cronjobs.yaml{message}"]


def test_what_yaml_does_not_print_python_does_not_either() -> None:
    everything = map(chr, (*range(0xD800), *range(0xE000, 0x110000)))
    assert decode("".join(filter(str.isprintable, everything)).encode())
    assert isinstance(decode("ä\x7f".encode()), Flaw)
    assert decode("ä\xa0\x85\xad\n".encode()) == "ä\xa0\x85\xad\n"  # YAML prints these, and Python does not
    assert yaml_nodes._CONTROL.search("".join(filter(str.isprintable, map(chr, range(0x110000))))) is None


def test_a_byte_order_mark_moves_nothing() -> None:
    assert problems(b"\xef\xbb\xbfdatabase: sqlite:///x.db\n") == []
    assert problems(b"\xef\xbb\xbfrun: {workers: 0}\ndatabase: sqlite:///x.db") == [
        'cronjobs.yaml:1:16: run.workers: "0" is not in 1–64'
    ]


@pytest.mark.parametrize("bomb", ["[" * 300_000, "{a: " * 200_000, "- " * 300_000, "? " * 300_000], ids="[{-?")
def test_a_deep_file_neither_crashes_nor_takes_long(bomb: str) -> None:
    tree, (*_, flaw) = parse(bomb)
    assert tree is None
    assert flaw.message == "values are nested deeper than 20 levels"


def test_a_bomb_of_aliases_is_never_expanded() -> None:
    rows = [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghi")]
    said = refusal('a: &a ["x", "x"]\n' + "".join(rows))
    assert sum("an alias (*) is not allowed" in line for line in said) == 8 * 9
    assert sum("an anchor (&) is not allowed" in line for line in said) == 9


def test_a_scalar_knows_where_it_stands_and_whether_it_bore_quotes() -> None:
    tree, flaws = parse("a: 010\nb: 'on'\nc: \"\\x41\"\nd: !!str 1\ne: >-\n  x\n  y\n")
    assert flaws == []
    assert isinstance(tree, Mapping)
    assert {key: node for key, (_, node) in tree.entries.items()} == {
        "a": Scalar("010", 1, 4, plain=True, inside=4),
        "b": Scalar("on", 2, 4, plain=False, inside=5),
        "c": Scalar("A", 3, 4, plain=False, inside=None),  # not written as it reads
        "d": Scalar("1", 4, 4, plain=False, inside=None),
        "e": Scalar("x y", 5, 4, plain=False, inside=None),
    }


def test_of_a_key_that_comes_again_the_first_line_is_known() -> None:
    tree, _ = parse("a: 1\nb: 2\na: 3\na: 4\n")
    assert isinstance(tree, Mapping)
    assert [(key.text, key.line, first) for key, first in tree.duplicates] == [("a", 3, 1), ("a", 4, 1)]


@pytest.mark.slow
def test_text_is_decoded_as_it_is() -> None:
    assert decode("a: ✓ 🎉\r\n".encode()) == "a: ✓ 🎉\r\n"
