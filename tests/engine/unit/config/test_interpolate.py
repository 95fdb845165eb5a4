"""Variables in values, env files, and masking."""

from __future__ import annotations

from pathlib import Path

import pytest

from cronjobs.engine.config.variables import UnsetVariableError, Variables, read_env_file


@pytest.mark.parametrize(
    ("text", "filled", "came_in"),
    [
        ("plain $A $$ {A}", "plain $A $$ {A}", []),
        ("${A}", "1", ["1"]),
        ("x${A}y${B}z", "x1y${A}z", ["1", "${A}"]),  # what comes in is not read again
        ("${A:-2}", "1", ["1"]),
        ("${NONE:-a default}", "a default", []),
        ("${NONE:-}", "", []),
        ("${EMPTY:-2}", "2", []),
        ("${EMPTY}", "", [""]),
        ("$${A}", "${A}", []),
        ("$${A}${A}", "${A}1", ["1"]),
        ("${file:secret}", "pa ss", ["pa ss"]),
    ],
)
def test_variables_are_filled_in(tmp_path: Path, text: str, filled: str, came_in: list[str]) -> None:
    (tmp_path / "secret").write_text("pa ss\n")
    variables = Variables({"A": "1", "B": "${A}", "EMPTY": ""}, tmp_path)
    assert variables.fill(text) == (filled, came_in)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${}", "this is not a variable: write ${NAME}"),
        ("${1A}", "this is not a variable: write ${NAME}"),
        ("${A", "this is not a variable: write ${NAME}"),
        ("${A:?x}", "this is not a variable: write ${NAME}"),
        ("${A:-${B}}", "this is not a variable: write ${NAME}"),
        ("${file:nowhere}", "${file:nowhere} cannot be read: No such file or directory"),
        ("${file:.}", "${file:.} cannot be read: Is a directory"),
        ("${file:binary}", "${file:binary} is not UTF-8 text"),
        ("${BYTES}", "the value of ${BYTES} is not UTF-8 text"),
    ],
)
def test_what_is_no_variable_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="^" + message.replace("$", r"\$").replace("{", r"\{")):
        Variables({"A": "1", "BYTES": "\udcff"}, tmp_path).fill(text)


def test_a_variable_that_is_not_set_is_never_guessed(tmp_path: Path) -> None:
    with pytest.raises(UnsetVariableError, match=r"^\$\{A\} is not set"):
        Variables({}, tmp_path).fill("${A}")


def test_an_env_file_is_read_as_people_write_them() -> None:
    text = """\
# a comment
A=1
export B=two words   # and a comment
 C = 'single $A # kept'
D="double \\"quoted\\" \\n\\$A \\x"
E=
F=a#b
G="two
lines"
H=''
I=# nothing
"""
    assert read_env_file(text) == (
        {
            "A": "1",
            "B": "two words",
            "C": "single $A # kept",
            "D": 'double "quoted" \n$A \\x',
            "E": "",
            "F": "a#b",
            "G": "two\nlines",
            "H": "",
            "I": "",
        },
        [],
    )
    assert read_env_file("A=1\r\nB=2\r\n") == ({"A": "1", "B": "2"}, [])


@pytest.mark.parametrize(
    ("text", "line"), [("A=1\nnothing\nB=2", 2), ("1A=2\nB=2", 1), ('B=2\nA="open', 2), ("B=2\nA='a' b", 2)]
)
def test_a_bad_line_of_an_env_file_is_told_and_not_quoted(text: str, line: int) -> None:
    variables, [(told, message)] = read_env_file(text)
    assert (variables["B"], told) == ("2", line)
    assert message.startswith("this is not KEY=value")
