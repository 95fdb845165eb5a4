"""The short form of random registries on each database; ``python -m tests.engine.registries`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.postgres import OWNER

from engine.registries.world import world

CASES = 24


@pytest.mark.slow
@pytest.mark.connects_as(OWNER)  # each case begins with empty tables
def test_whatever_hosts_know_and_wherever_ticks_die_nothing_is_run_twice_or_held_up(
    database_url: str, tmp_path: Path
) -> None:
    with world(database_url, tmp_path) as here:
        reports = {seed: here.case(seed) for seed in range(CASES)}
    assert {seed: report.violations for seed, report in reports.items() if report.violations} == {}
    # The test did exercise what it is about.
    assert sum(report.kills for report in reports.values()) > CASES / 2
    assert sum(report.executions for report in reports.values()) > CASES
