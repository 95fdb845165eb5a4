"""``defaults.commands`` and ``defaults.schedules``: values that most entries share are written once."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.cases import judge
from support.configfile import DATABASE, read

COMMANDS: dict[str, list[Any]] = {
    "timeout": ["10s", "2h"],
    "retry": [{"max_attempts": 1}, {"base": "1m", "cap": "2h"}],
    "env": [{"A": "1"}, {"B": "2", "C": "$${x}"}],
    "inherit_env": [[], ["PATH"]],
    "max_memory": ["512MiB", "1GiB"],
    "on_lost": ["dead", "retry"],
    "success_exit_codes": [[0, 24], [7]],
    "retry_exit_codes": [[65], []],
    "stdin": ["none", "text"],
    "folder": ["/", "/tmp"],
    "leftovers": ["leave", "end"],
}
SCHEDULES: dict[str, list[Any]] = {
    "queue": ["mail", "default"],
    "priority": [0, 5],
    "catch_up": ["none", "all"],
    "catch_up_within": ["1h", "2d"],
    "catch_up_limit": [3, 100],
    "overlap": ["allow", "wait"],
    "spread": ["1m", "10m"],
    "grace": ["5m", "1h"],
    "warn_after_failures": [1, 9],
}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def some(dice: random.Random, of: dict[str, list[Any]]) -> dict[str, Any]:
    return {key: dice.choice(values) for key, values in of.items() if dice.random() < 0.4}


def test_what_defaults_say_is_what_each_entry_would_say_itself() -> None:
    def case(dice: random.Random) -> None:
        commands, schedules = some(dice, COMMANDS), some(dice, SCHEDULES)
        types: dict[str, Any] = {f"c{number}": {"command": ["x"]} | some(dice, COMMANDS) for number in range(2)}
        types["handler"] = dice.choice([{}, {"timeout": "3s", "on_lost": "dead"}])
        due = {
            "s1": {"every": "5m", "job": "c1"} | some(dice, SCHEDULES),
            "s2": {"cron": "0 2 * * *", "command": ["y", "z"]} | some(dice, SCHEDULES),
            "s3": {"every": "1h", "command": ["y"], "timeout": "7s"} | some(dice, SCHEDULES),
        }
        short = {
            "database": "sqlite:///x.db",
            "defaults": {"commands": commands, "schedules": schedules},
            "job_types": types,
            "schedules": due,
        }
        for name in types.keys() - {"handler"}:
            types = types | {name: commands | types[name]}
        own = {name: {"command": due[name]["command"]} for name in ("s2", "s3")}
        types |= {name: commands | entry for name, entry in own.items()}
        types["s3"]["timeout"] = "7s"
        due = {name: schedules | entry for name, entry in due.items()}
        for name in own:
            due[name] = {key: value for key, value in due[name].items() if key != "command"} | {"job": name}
        said = {"database": "sqlite:///x.db", "job_types": types, "schedules": due}
        found, long = read(json.dumps(short)), read(json.dumps(said))
        assert (found.problems, long.problems) == ((), ())
        assert (found.job_types, found.schedules) == (long.job_types, long.schedules)

    judge(case, 30)


@pytest.mark.parametrize(
    ("bad", "says", "disabled", "types"),
    [
        ("schedules: {overlap: nope}", '3:24: defaults.schedules.overlap: "nope" is not one of', {"a", "b"}, {"b"}),
        ("schedules: {cron: '* * * * *'}", "3:15: defaults.schedules.cron: unknown key", {"a", "b"}, {"b"}),
        ("commands: {timeout: 5}", '3:23: defaults.commands.timeout: "5" has no unit', {"b"}, {"b", "x"}),
        ("commands: 5", "3:13: defaults.commands: write it as a mapping", {"b"}, {"b", "x"}),
        ("retry: {cap: 5}", '3:16: defaults.retry.cap: "5" has no unit', set(), set()),
    ],
)
def test_a_bad_default_disables_the_entries_that_would_have_it(
    bad: str, says: str, disabled: set[str], types: set[str]
) -> None:
    found = read(
        f"{DATABASE}defaults:\n  {bad}\njob_types: {{x: {{command: [x]}}, handler: {{timeout: 5s}}}}\n"
        "schedules:\n  a: {every: 1h, job: handler}\n  b: {every: 1h, command: [y]}\n"
    )
    assert {each.path for each in found.problems[1:]} == {
        *(f"schedules.{name}" for name in disabled),
        *(f"job_types.{name}" for name in types - disabled),
    }
    assert str(found.problems[0]).partition(": ")[2].startswith(says.partition(": ")[2])
    assert f":{says.partition(': ')[0]}:" in f":{found.problems[0].line}:{found.problems[0].column}:"
    assert found.disabled_schedules == disabled
    assert found.disabled_job_types == types
    assert set(found.schedules) == {"a", "b"} - disabled
