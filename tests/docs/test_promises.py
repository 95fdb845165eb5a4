"""Each of the README's promises has tests that attack it. When a promise is added or removed, change the list here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REGISTRIES = "engine/registries/test_registries.py"

ATTACKS = {
    "Nothing is lost": (
        "engine/crash/test_kill_points.py::test_a_flow_killed_at_any_point_loses_nothing_and_doubles_nothing",
        "engine/chaos/test_chaos.py::test_nothing_is_lost_or_doubled_while_runners_die_and_freeze",
        "engine/process/test_rolling_deploy.py::test_a_deploy_under_way_loses_nothing_and_kills_nothing",
        "engine/database/test_pauses.py::test_whatever_two_hosts_deploy_under_pauses_each_occurrence_ends_as_one_thing",
    ),
    "One owner": (
        "engine/database/test_fence.py::test_who_lost_the_lease_changes_nothing",
        "engine/process/test_many_ticks.py::test_eight_ticks_at_once_do_each_job_and_each_occurrence_once",
        "engine/process/test_time_limit.py::test_a_tick_frozen_past_its_end_dies_although_it_is_stopped_and_writes_nothing",
        f"{REGISTRIES}::test_whatever_hosts_know_and_wherever_ticks_die_nothing_is_run_twice_or_held_up",
    ),
    "One job per occurrence": (
        "engine/process/test_many_ticks.py::test_eight_ticks_at_once_do_each_job_and_each_occurrence_once",
        "engine/process/test_many_ticks.py::test_what_another_tick_settled_since_it_was_read_is_not_settled_again",
    ),
    "At least once": (
        "desk/process/test_effects.py::test_a_runner_killed_at_any_point_leaves_effects_as_often_as_they_say",
        "desk/process/test_effects.py::test_a_frozen_runner_that_wakes_after_another_did_the_effect_does_not_repeat_it",
        "engine/process/test_transaction.py::test_a_runner_that_was_frozen_in_its_transaction_writes_nothing",
    ),
    "Work really stops": (
        "engine/process/test_ways_to_block.py::test_in_a_process_each_is_gone_by_its_timeout_and_grace_and_a_second",
        "engine/process/test_ways_to_block.py::test_in_a_thread_each_is_gone_with_its_tick_and_what_it_left_behind_is_named",
        "engine/process/test_process_stops.py::test_a_command_that_ignores_sigterm_is_killed_after_its_grace",
    ),
    "The tick ends on time": (
        "engine/process/test_time_limit.py::test_c_calls_that_hold_the_gil_are_ended_by_the_kernel_and_recorded_lost",
        "engine/process/test_time_limit.py::test_no_handler_takes_the_time_limit_away",
    ),
    "Failure is never silent": (
        "contrib/test_incidents.py::test_an_incident_is_reported_until_it_is_over",
        "engine/process/test_alarm.py::test_a_cause_that_repeats_each_minute_is_told_at_once_then_hourly_then_daily",
        "engine/process/test_many_ticks.py::test_idle_ticks_print_nothing_under_cron",
    ),
}


def promises() -> list[str]:
    [table] = re.findall(
        r"## What it promises\n\n\| \| \|\n\|---\|---\|\n((?:\|.*\n)+)", (ROOT / "README.md").read_text()
    )
    return [line.split("|")[1].strip() for line in table.splitlines()]


def test_every_promise_has_its_attacks() -> None:
    assert promises() == [*ATTACKS]


@pytest.mark.parametrize("attack", sorted({attack for attacks in ATTACKS.values() for attack in attacks}))
def test_an_attack_is_a_test(attack: str) -> None:
    file, name = attack.split("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
