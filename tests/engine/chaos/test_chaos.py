"""A short campaign on each database, with fixed seeds. Also: the judge must be able to fail a campaign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.chaos.campaign import campaign
from engine.chaos.plan import Size

pytestmark = pytest.mark.slow

SHORT = {
    "sqlite": Size(jobs=160, kills=18, freezes=6),
    "postgresql": Size(jobs=160, kills=18, freezes=6, restarts=1, cuts=4),
}


@pytest.mark.parametrize("database", SHORT)
def test_nothing_is_lost_or_doubled_while_runners_die_and_freeze(database: str, tmp_path: Path) -> None:
    report = campaign(database, 20_260_302, SHORT[database], tmp_path, limit_s=240)
    print(json.dumps(report, indent=1))
    assert report["violations"] == []
    assert report["freezes in which a job was taken over"] > 0
    assert report["keyed effects repeated"] <= report["keyed effects left unknown"]
    assert report["unkeyed effects doubled"] > 0


@pytest.mark.either
def test_nothing_is_lost_or_doubled_while_standbys_take_over(tmp_path: Path) -> None:
    size = Size(jobs=120, kills=10, freezes=2, cuts=1, promotions=2)
    report = campaign("postgresql", 20_261_123, size, tmp_path, limit_s=240)
    print(json.dumps(report, indent=1))
    assert report["violations"] == []
    assert report["done"]["promote"] == 2
