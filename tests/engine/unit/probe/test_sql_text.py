"""How a statement is written for each database, and that all its placeholders are known."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from cronjobs.engine.database import tables
from cronjobs.engine.probe import sql_text
from cronjobs.engine.probe.sql_text import JOBS, NOW, after_now, either, statement_text
from cronjobs.engine.schema.drift import FUNCTIONS

PACKAGE = Path(__file__).parents[4] / "cronjobs"
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|WHERE)\b")


def test_each_database_gets_its_own_words_however_deep_they_stand() -> None:
    inner = either(postgresql="p", sqlite=either(postgresql="never", sqlite="s"))
    statement = f"a {either(postgresql=f'[{inner}]', sqlite=f'({inner})')} b {inner}"
    assert statement_text(statement, postgresql=True) == "a [p] b p"
    assert statement_text(statement, postgresql=False) == "a (s) b s"


def test_a_table_is_looked_for_in_the_configured_schema() -> None:
    statement = f"SELECT {NOW} FROM {JOBS} WHERE run_at <= {after_now('1')}"
    assert statement_text(statement, postgresql=False) == (
        "SELECT :now_ FROM cronjobs_jobs WHERE run_at <= (:now_ + CAST((1) * 1000000 AS INTEGER))"
    )
    assert 'FROM "a ""{b}""".cronjobs_jobs WHERE' in statement_text(statement, postgresql=True, schema='a "{b}"')


def test_what_a_schema_may_hold_has_the_names_of_its_tables_and_functions() -> None:
    names = {value for name, value in vars(sql_text).items() if name.isupper() and value.startswith("{")}
    there = {*tables.metadata.tables, *FUNCTIONS, "cronjobs_queues_held"}
    assert names
    assert names <= {f"{{{name.removeprefix('cronjobs_')}}}" for name in there}


def test_no_statement_of_constants_lacks_the_f_before_its_quotes() -> None:
    """It would look for a table that is called like the constant, when it is run."""
    assert [*_unfilled("WHERE j.{WAITING}")] == ["{WAITING}"]
    found = [
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        if re.search(r"probe\.sql_text|store\.sql", text := path.read_text())
        for name in _unfilled_in(text)
    ]
    assert found == []


def _unfilled(text: str) -> list[str]:
    return re.findall(r"\{\w+\}", text) if SQL.search(text) else []


def _unfilled_in(module: str) -> list[str]:
    tree = [*ast.walk(ast.parse(module))]
    pieces = {id(piece) for node in tree if isinstance(node, ast.JoinedStr) for piece in ast.walk(node)}
    pieces |= {id(node.value) for node in tree if isinstance(node, ast.Expr)}  # docstrings
    texts = [node.value for node in tree if isinstance(node, ast.Constant) and id(node) not in pieces]
    return [name for text in texts if isinstance(text, str) for name in _unfilled(text)]
