"""docs/how-to/hosts.md: the figures for 1,000 hosts are computed from the measurements with 50."""

from __future__ import annotations

import pytest
from support.pages import ROOT, Page

PAGE, MEASURED = Page("docs/how-to/hosts.md"), Page("benchmarks/README.md")
pytestmark = pytest.mark.either


def numbers(words: str) -> list[float]:
    return [float(word.replace(",", "")) for word in words.split() if word.replace(",", "").replace(".", "").isdigit()]


def test_the_figures_for_a_thousand_hosts_follow_from_those_of_fifty() -> None:
    [measured] = [row for row in MEASURED.table("Many hosts") if (row["hosts"], row["ms each way"]) == ("50", "0.5")]
    idle_ms, woken_ms = float(measured["idle: CPU, ms"]), float(measured["woken: CPU, ms"])
    wal = float(measured["idle: WAL, bytes"].replace(",", ""))
    due, idle, rows, log = [list(row.values()) for row in PAGE.table("Computed: 1,000 hosts")[1:]]
    assert numbers(due[1])[0] == woken_ms  # milliseconds of one host are seconds of a thousand
    assert numbers(due[2])[-1] == round(120_000 / woken_ms)
    assert numbers(idle[1])[0] == idle_ms
    assert f"{idle_ms / 60:.0%} of a core" in idle[1]
    assert numbers(idle[2])[0] == round(60_000 / idle_ms)
    a_day = 1000 * 1440
    assert f"{a_day / 1e6:.2f} million a day, {a_day * 300 / 1e9:.2f} GB; {a_day * 300 * 90 / 1e9:.0f} GB" in rows[1]
    assert f"{a_day * wal / 1e9:.2f} GB a day" in log[1]


def test_an_idle_host_costs_the_same_beside_any_number_of_others() -> None:
    rows = MEASURED.table("Many hosts")
    assert {row["hosts"] for row in rows} == {"1", "2", "4", "8", "16", "50"}
    wal = [float(row["idle: WAL, bytes"].replace(",", "")) for row in rows]
    assert max(wal) < 1.1 * min(wal)
    assert max(float(row["idle: asks"]) for row in rows) < 8


def test_the_page_is_whole() -> None:
    assert PAGE.counts() == {"console": 3, "crontab": 1, "yaml": 1}  # test_pages_operate.py
    assert (ROOT / "docs/images/many-hosts.svg").exists()
    assert PAGE.dead_links() == []
