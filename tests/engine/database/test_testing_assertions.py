"""The assertions of ``cronjobs.testing``: what they find, and the message if one fails."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, NullPool, create_engine
from support.targets import plain_url

from cronjobs import enqueue
from cronjobs.errors import CronError, UsageError
from cronjobs.testing import assert_enqueued, assert_fires, assert_not_enqueued

NOON = datetime(2030, 6, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with create_engine(plain_url(database_url), poolclass=NullPool).connect() as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def three(connection: Connection) -> Connection:
    """Three uncommitted jobs."""
    invoice = {"invoice_id": 42, "lines": [1, 2], "queue": "none of ours"}
    enqueue(connection, "billing.send", invoice, queue="mail", idempotency_key=("invoice", 42), meta={"tenant": "a"})
    enqueue(connection, "billing.send", {"invoice_id": 43}, delay="5m", priority=2)
    enqueue(connection, "reports.build", {"day": "2030-06-01"}, run_at=NOON)
    return connection


FOUND: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [42, 43]),
    ({"invoice_id": 42}, [42]),
    ({"lines": (1, 2)}, [42]),
    ({"queue": "mail"}, [42]),
    ({"meta": {"tenant": "a"}}, [42]),
    ({"idempotency_key": ("invoice", 42)}, [42]),
    ({"delay": "5m"}, [43]),
    ({"delay": 0}, [42]),
    ({"priority": 2, "count": 1}, [43]),
    ({"status": "queued", "count": 2}, [42, 43]),
]
NOT_FOUND: list[dict[str, Any]] = [
    {"invoice_id": 44},
    {"invoice_id": None},
    {"lines": [1]},
    {"other": 1},
    {"queue": "slow"},
    {"delay": "6m"},
    {"status": "succeeded"},
    {"run_at": NOON},
    {"meta": {"tenant": "b"}},
    {"idempotency_key": "invoice:43"},
]


def test_a_job_is_found_by_what_is_said_of_it(three: Connection) -> None:
    for options, found in FOUND:
        assert [job.payload["invoice_id"] for job in assert_enqueued(three, "billing.send", **options)] == found


def test_a_job_that_is_otherwise_is_not_found(three: Connection) -> None:
    for options in NOT_FOUND:
        assert_not_enqueued(three, "billing.send", **options)
        with pytest.raises(AssertionError, match=r"no job was enqueued as billing\.send"):
            assert_enqueued(three, "billing.send", **options)


def test_a_payload_key_may_be_named_as_an_option(three: Connection) -> None:
    assert_enqueued(three, "billing.send", {"queue": "none of ours"}, queue="mail")
    assert_not_enqueued(three, "billing.send", {"queue": "mail"})


def test_a_failure_lists_what_is_there(three: Connection) -> None:
    with pytest.raises(AssertionError) as told:
        assert_enqueued(three, "billing.send", invoice_id=44, queue="mail")
    title, count, *listed = str(told.value).splitlines()
    assert (title, count) == ('no job was enqueued as billing.send {"invoice_id": 44} queue=mail', "there are 3:")
    assert [line[:16] for line in listed] == ["  - billing.send", "  - billing.send", "  - reports.buil"]
    said = ("queued queue=mail idempotency_key=invoice:42", "delay=5m", NOON.isoformat())
    assert all(words in line for words, line in zip(said, listed, strict=True))
    with pytest.raises(AssertionError, match=r"^expected 0, but 2 jobs were enqueued as billing\.send {}"):
        assert_not_enqueued(three, "billing.send")


def test_a_failure_says_that_there_is_nothing(connection: Connection) -> None:
    with pytest.raises(AssertionError, match=r"there are none$"):
        assert_enqueued(connection, "billing.send")


# --- schedules --------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "cronjobs.yaml"
    file.write_text(
        "database: ${NOT_SET}\ntimezone: Europe/Berlin\n"
        'schedules:\n  nightly: {cron: "15 2 * * *", job: t.say}\n  often: {every: 30m, job: t.say}\n'
    )
    return file


def test_a_schedule_of_the_file_fires_by_its_own_clock(file: Path) -> None:
    """The night in which Berlin has no 02:15, and the one in which it has two."""
    assert_fires(
        "nightly",
        between=("2026-03-28", "2026-03-31"),
        at=["2026-03-28 02:15", "2026-03-29T03:00", datetime(2026, 3, 30, 0, 15, tzinfo=UTC)],
        config=file,
    )
    assert_fires("nightly", between=("2026-10-25", "2026-10-26"), at=["2026-10-25T02:15+02:00"], config=file)
    assert_fires("nightly", between=("2026-10-25T02:16+02:00", "2026-10-26"), at=[], config=file)
    [fired] = assert_fires("nightly", between=("2026-07-01", "2026-07-02"), config=file)
    assert (fired.hour, fired.utcoffset()) == (2, timedelta(hours=2))


def test_an_expression_and_a_distance_need_no_file() -> None:
    assert_fires("0 9 * * mon", between=("2026-03-02", "2026-03-16"), count=2)
    assert_fires("every 10m", between=("2026-03-02 00:00", "2026-03-02 01:00"), count=6)  # the end is left out
    assert_fires("0 9 * * *", between=("2026-03-02", "2026-03-03"), at=["2026-03-02T14:00+00:00"], timezone="EST5EDT")


def test_a_failure_says_when_it_fires(file: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"^nightly should fire at 2026-03-28 02:00:00\+01:00 between .* but fires at "
    ):
        assert_fires("nightly", between=("2026-03-28", "2026-03-29"), at=["2026-03-28T02:00"], config=file)
    with pytest.raises(AssertionError, match=r"should fire between .* but does not fire$"):
        assert_fires("nightly", between=("2026-03-28T03:00", "2026-03-29T00:00"), config=file)
    with pytest.raises(AssertionError, match=r"should fire 3 times .* and 38 more"):
        assert_fires("often", between=("2026-03-28", "2026-03-29"), count=3, config=file)


def test_what_is_no_schedule_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match=r'no schedule "nightlyy" in .*\. Schedules there: nightly, often'):
        assert_fires("nightlyy", between=("2026-03-28", "2026-03-29"), config=file)
    with pytest.raises(CronError):
        assert_fires("61 * * * *", between=("2026-03-28", "2026-03-29"))
    with pytest.raises(UsageError, match="'tomorrow' is not an ISO time"):
        assert_fires("@daily", between=("tomorrow", "2026-03-29"))
    with pytest.raises(UsageError, match="None is not an ISO time"):
        assert_fires("@daily", between=(None, "2026-03-29"))  # type: ignore[arg-type]
