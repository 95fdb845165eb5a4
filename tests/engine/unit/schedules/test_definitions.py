"""Schedules as JSON in the database, and the fingerprint of a file."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronjobs.engine.config.settings import ScheduleSettings, Settings
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.schedules.definition import canonical, definition, fingerprint, schedule_from_definition

DAY = timedelta(days=1)
SIMPLE = ScheduleSettings("a", "x", cron="15 2 * * *", timezone="Europe/Berlin")
FILE = Settings(Path("c.yaml"), Path(), schedules={"a": SIMPLE})

_spans = st.timedeltas(timedelta(0), timedelta(days=3650))
_schedules = st.builds(
    ScheduleSettings,
    name=st.just("a"),
    job=st.text(),
    cron=st.none() | st.text(),
    every=st.none() | _spans,
    timezone=st.text(),
    payload=st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.booleans())),
    queue=st.text(),
    priority=st.integers(0, 9),
    timeout=st.none() | _spans,
    max_attempts=st.none() | st.integers(1),
    catch_up=st.sampled_from(["none", "latest", "all"]),
    catch_up_within=_spans,
    catch_up_limit=st.integers(1),
    overlap=st.sampled_from(["skip", "wait", "allow"]),
)


@given(_schedules)
def test_a_schedule_comes_back_from_the_database_as_it_was(schedule: ScheduleSettings) -> None:
    stored = json.loads(canonical(definition(schedule)))
    assert schedule_from_definition("a", stored) == schedule
    assert definition(schedule_from_definition("a", stored)) == stored


def test_every_field_of_a_schedule_is_in_its_definition() -> None:
    full = {
        "every": DAY,
        "timeout": DAY,
        "spread": DAY,
        "grace": DAY,
        "warn_after_failures": 5,
        "max_attempts": 1,
        "retry_until": "next_occurrence",
        "secret_keys": ["token"],
    }
    stored = definition(replace(SIMPLE, **full))  # type: ignore[arg-type]
    of_the_file = {"name", "environments", "renamed_from", "ping"}  # what sync reads before it writes a definition
    assert {key.removesuffix("_s") for key in stored} | of_the_file == set(ScheduleSettings.__dataclass_fields__)


@pytest.mark.parametrize(
    "change",
    [
        {"colour": "blue"},
        {"overlap": "queue"},
        {"catch_up": ["some"]},
        {"priority": "high"},
        {"payload": None},
        {"queue": 3},
        {"secret_keys": "token"},
        {"timeout_s": "a while"},
        {"catch_up_within_s": True},
        {"catch_up_within_s": float("inf")},
    ],
)
def test_a_definition_of_a_newer_version_is_read_as_far_as_it_is_understood(change: dict[str, object]) -> None:
    assert schedule_from_definition("a", definition(SIMPLE) | change) == SIMPLE


def test_a_definition_with_nothing_but_its_timing_has_the_defaults() -> None:
    assert schedule_from_definition("a", {"cron": "1 2 * * *"}) == ScheduleSettings("a", "a", cron="1 2 * * *")


def test_the_fingerprint_changes_with_what_hosts_must_share_and_with_nothing_else() -> None:
    first = fingerprint(FILE)
    assert len(first) == 16
    assert int(first, 16) >= 0
    other = replace(SIMPLE, timezone="UTC")
    assert fingerprint(replace(FILE, schedules={"a": other})) != first
    assert fingerprint(replace(FILE, disabled_schedules=frozenset({"b"}))) != first
    limited = [replace(FILE, limits=(Limit("api:", each=each),)) for each in (2, 9)]
    assert len({first, *map(fingerprint, limited)}) == 3
    assert fingerprint(replace(FILE, run=replace(FILE.run, workers=16))) == first
    assert fingerprint(replace(FILE, log=Path("x"), database="sqlite:///y", positions={"a": (1, 2)})) == first
    both = replace(FILE, schedules={"a": SIMPLE, "b": other})
    assert fingerprint(replace(both, schedules={"b": other, "a": SIMPLE})) == fingerprint(both)


def test_the_fingerprint_stays_the_same_from_version_to_version() -> None:
    # A new value here makes every host of every user apply its file once more: do not change it without need.
    assert fingerprint(FILE) == "70a9ac7c211d942b"
