"""The arithmetic of the benchmarks' tables and plots."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import figures

    return figures


def test_a_ratio_compares_what_ran_in_the_same_round(figures: ModuleType) -> None:
    assert figures.ratio([10, 200, 30], [5, 100, 10]) == 2
    with pytest.raises(ValueError, match="zip"):
        figures.ratio([10, 20], [5])


def test_a_drains_rate_is_without_the_start_of_each_of_its_runs(figures: ModuleType) -> None:
    assert figures.drain_rates(100, [1, 9, 1], [3, 5, 4], [1, 1, 2]) == [50, 25, 50]


def test_a_drain_that_took_no_longer_than_one_job_has_no_rate(figures: ModuleType) -> None:
    assert figures.drain_rates(100, [1], [1], [1]) is None


def test_each_row_is_compared_with_the_floor_and_with_cronjobs_on_its_own_database(figures: ModuleType) -> None:
    series = [
        figures.Series("python", "", [1.0]),
        figures.Series("bare", "sqlite", [2.0, 4.0, 3.0], floor=True),
        figures.Series("cronjobs", "sqlite", [4.0, 8.0, 6.0]),
        figures.Series("other", "sqlite", [1200.0, 2400.0, 1800.0]),
        figures.Series("other", "postgresql", [12.3]),
    ]
    assert figures.rows(series) == [
        ["python", "–", "1", "1–1", "–", "–"],
        ["bare", "sqlite", "3", "2–4", "1", "0.5"],
        ["cronjobs", "sqlite", "6", "4–8", "2", "1"],
        ["other", "sqlite", "1,800", "1,200–2,400", "600", "300"],
        ["other", "postgresql", "12.3", "12.3–12.3", "–", "–"],
    ]
    ElementTree.fromstring(figures.svg([("Idle <tick>", "ms", series)]))


def test_curves_share_the_axes_of_their_panel_and_are_named_beside_it(figures: ModuleType) -> None:
    near, far = ("near", [(1, 100), (10, 50)]), ("far <away>", [(1, 0), (10, 25)])
    drawn = ElementTree.fromstring(figures.curves([("Jobs & seconds", [near, far])], "hosts"))
    ways = [line.attrib["points"] for line in drawn.iter("{http://www.w3.org/2000/svg}polyline")]
    assert ways == ["80.0,30.0 560.0,95.0", "80.0,160.0 560.0,127.5"]
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Jobs & seconds", "near", "far <away>", "1", "10", "0", "100"} <= set(texts)
