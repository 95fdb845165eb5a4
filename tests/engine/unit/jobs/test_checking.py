"""Arguments of enqueue are accepted, or refused with a clear message, before anything is written."""

from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import pytest

from cronjobs.engine.jobs.checking import key_text, new_job
from cronjobs.errors import CronjobsError, UsageError

pytestmark = pytest.mark.either


class Nowhere(tzinfo):
    """An aware datetime is one whose zone says an offset."""

    def utcoffset(self, at: datetime | None) -> None: ...

    def dst(self, at: datetime | None) -> None: ...

    def tzname(self, at: datetime | None) -> None: ...


@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [
        ("run_at", "2030-01-01T00:00:00+00:00", "is not a datetime: pass an aware one"),
        ("run_at", date(2030, 1, 1), "is not a datetime"),
        ("run_at", timedelta(days=1), "is not a datetime"),
        ("run_at", datetime(2030, 1, 1, tzinfo=Nowhere()), "has no time zone"),
        ("delay", Decimal(1), "is not a duration"),
        ("delay", [], "is not a duration"),
        ("delay", 10**400, "is not a duration between 0 and ten years"),
        ("timeout", object(), "is not a duration"),
        ("meta", ["a"], "meta must map strings to strings"),
        ("meta", "x", "meta must map strings to strings"),
    ],
)
def test_an_argument_of_another_type_is_refused_in_words(argument: str, value: Any, says: str) -> None:
    with pytest.raises(CronjobsError, match=says):
        new_job("t.x", {}, **{argument: value})
    assert new_job("t.x", {}, run_at=datetime(2030, 1, 1, tzinfo=UTC)).run_at == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("part", [object(), {"a", "b"}, frozenset({1}), (1, object()), lambda: None])
def test_a_key_that_another_process_would_write_otherwise_is_refused(part: object) -> None:
    """With it, the same event would be done once in each process."""
    with pytest.raises(UsageError, match="would be different in each process"):
        key_text(("invoice", part))


def test_a_text_that_looks_like_an_object_is_a_text() -> None:
    assert key_text(("invoice", "<a at 0x7f>", 42)) == "invoice:<a at 0x7f>:42"
