"""The outcome of attempts that a worker must not, or could not, run."""

from __future__ import annotations

from datetime import timedelta

from cronjobs.contrib.dask.messages import GuardReport, news
from cronjobs.contrib.dask.rules import Versions, difference, of_difference, of_waiting
from cronjobs.model import Failed, Released, Succeeded, TimedOut

HERE = Versions("1.2.0", "3.12")


def test_versions_must_be_alike_and_patch_levels_of_python_need_not() -> None:
    assert difference(HERE, HERE) is None
    found = difference(HERE, Versions("1.3.0", "3.11"))
    assert (
        found
        == "the worker has cronjobs 1.3.0 (the claiming host has 1.2.0) and Python 3.11 (the claiming host has 3.12)"
    )


def test_a_difference_is_a_deploy_for_ten_minutes() -> None:
    assert isinstance(of_difference("why", 0), Released)
    assert isinstance(of_difference("why", 599.9), Released)
    failed = of_difference("why", 600)
    assert isinstance(failed, Failed)
    assert failed.error == "why, for more than ten minutes"
    assert not failed.permanent


def test_waiting_is_told_in_minutes_or_seconds() -> None:
    assert "for 10m" in str(of_waiting("c", timedelta(minutes=10)).error)
    assert "for 5s" in str(of_waiting("c", timedelta(seconds=5)).error)


def test_a_report_comes_back_as_it_was() -> None:
    for outcome in (Succeeded({"n": [1, None]}, "note"), TimedOut("late"), Failed("x", "E", retry_after=timedelta(1))):
        report = GuardReport("ended", "", outcome, "said\n", timedelta(seconds=1.5))
        assert GuardReport.decode(report.encode()) == report


def test_a_report_that_cannot_be_read_is_a_failure_as_its_handler_ran() -> None:
    for text in ("", "[]", '{"said": "ended", "why": "", "took_s": 1}', '{"said": "ended", "took_s": "x"}'):
        assert isinstance(GuardReport.decode(text).outcome, Failed)


def test_anybody_can_write_to_a_topic() -> None:
    for said in (None, 7, [], ["begun"], ["begun", 1, 2, 3, 4], ["other", 1, 2, 3]):
        assert news(said) is None
