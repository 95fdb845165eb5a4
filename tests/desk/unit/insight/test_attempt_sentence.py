"""What ``explain`` says about one attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cronjobs.desk.insight.explain_facts import AttemptFacts
from cronjobs.desk.insight.explain_job import attempt_sentence
from cronjobs.desk.insight.formatting import LocalTimes

BEGAN = datetime(2026, 3, 3, 2, 0, tzinfo=UTC)


def test_an_error_after_the_commit_is_called_an_error() -> None:
    ended = BEGAN + timedelta(seconds=2)
    facts = AttemptFacts(1, "succeeded", BEGAN, ended, "", error_type="ValueError", error="after commit")
    said = attempt_sentence(facts, LocalTimes(ended, "UTC"))
    assert said == "Attempt 1 succeeded at 02:00:02, after 2s; then this error followed: ValueError: after commit."
