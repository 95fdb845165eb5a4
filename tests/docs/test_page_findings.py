"""docs/reference/findings.md: every kind of finding, with its severity; its commands and its code work."""

from __future__ import annotations

import ast
import re

from contrib.test_alerts_incidents import BY_NO_TICK
from sqlalchemy import create_engine
from support.pages import ROOT, Page

from cronjobs.desk.insight.finding import Severity
from cronjobs.desk.rules.finding_kinds import FINDING_KINDS

PAGE = Page("docs/reference/findings.md")
RULES = (
    *(f"desk/insight/findings_of_{each}.py" for each in ("ticks", "schedules", "work")),
    *("contrib/alerts/findings.py", "contrib/exec/findings.py", "desk/insight/findings_of_extras.py"),
)


def severities() -> dict[str, set[str]]:
    """By kind: the severities that the code gives it."""
    found: dict[str, set[str]] = {}
    for module in RULES:
        tree = ast.parse((ROOT / "cronjobs" / module).read_text())
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Finding":
                kind = ast.literal_eval(call.args[0])
                third = ast.unparse(call.args[2]) if len(call.args) > 2 else "Severity.WARNING"
                named = {word.lower() for word in re.findall(r"Severity\.([A-Z]+)", third)}
                found.setdefault(kind, set()).update(named or {str(each) for each in Severity})
    return found


def test_every_kind_is_listed_with_its_severity() -> None:
    listed = {row["kind"].strip("`"): row["severity"] for row in PAGE.table("Kinds")}
    assert listed.keys() == FINDING_KINDS.keys()
    for kind, found in severities().items():
        said = set(re.findall("|".join(Severity), listed[kind]))
        assert said <= found, kind
        assert said, kind


def test_what_no_tick_can_tell_is_listed_as_it_is_tested() -> None:
    told = {row["finding"].strip("`") for row in PAGE.table("Who sends a finding")}
    assert told == BY_NO_TICK | {"host", "all others"}


def test_the_health_endpoint_answers(database_url: str) -> None:
    space: dict[str, object] = {}
    exec(PAGE.block("python", "healthz"), space)
    engine = create_engine(database_url)
    try:
        with engine.connect() as connection:
            code, answer = space["healthz"](connection)  # type: ignore[operator]
    finally:
        engine.dispose()
    assert code == 503
    assert [finding["finding"] for finding in answer["findings"]] == ["no_tick"]


def test_it_links_to_nothing_that_is_not_there() -> None:
    assert PAGE.dead_links() == []
    assert PAGE.counts() == {"console": 1, "python": 1}
