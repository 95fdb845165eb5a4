"""``testing.context``: a handler in a plain unit test, without a database."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import NullPool, create_engine, text
from support import billing

from cronjobs import Cancelled, Context, EffectUnknown, GiveUp
from cronjobs.errors import UsageError
from cronjobs.testing import UNKNOWN, FakeClock, context

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    billing.sent.clear()


def test_a_handler_is_called_as_a_function() -> None:
    assert billing.charge(context(tries=3), invoice_id=7) == {"receipt": "receipt 7", "try": 3, "late": False}
    with pytest.raises(GiveUp):
        billing.charge(context(), invoice_id=0)


def test_every_field_is_what_the_test_said() -> None:
    monday = datetime(2026, 3, 2, 2, 15, tzinfo=BERLIN)
    ctx = context(
        "reports.weekly",
        job_id=17,
        attempt=4,
        tries=2,
        meta={"tenant": "acme"},
        enqueued_at=monday - timedelta(hours=1),
        scheduled_for=monday,
        late_by="90s",
        stands_for=3,
        idempotency_key=("invoice", 42),
        remaining=12.5,
    )
    assert isinstance(ctx, Context)
    assert (ctx.job_id, ctx.job_type, ctx.attempt, ctx.tries, ctx.stands_for) == (17, "reports.weekly", 4, 2, 3)
    assert (ctx.meta, ctx.idempotency_key, ctx.remaining_s) == ({"tenant": "acme"}, "invoice:42", 12.5)
    assert (ctx.late_by, ctx.started_at) == (timedelta(seconds=90), monday + timedelta(seconds=90))
    assert ctx.enqueued_at == monday - timedelta(hours=1)
    assert ctx.scheduled_for is not None
    assert (ctx.scheduled_for.tzinfo, ctx.scheduled_for.date()) == (BERLIN, monday.date())
    assert context(job_id=5).idempotency_key == "cronjobs-job-5"


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"cancelled": True}, "cancelled"), ({"cancelled": "shutdown"}, "shutdown"), ({"remaining": 0}, "timeout")],
)
def test_a_handler_is_asked_to_stop(given: dict[str, Any], reason: str) -> None:
    ctx = context(**given)
    assert ctx.cancelled == ("cancelled" in given)
    with pytest.raises(Cancelled, match=reason):
        billing.charge(ctx, invoice_id=7)
    assert billing.sent == []


def test_time_passes_when_the_test_says_so() -> None:
    clock = FakeClock(datetime(2026, 3, 2, tzinfo=UTC))
    ctx = context(remaining="10s", clock=clock)
    clock.advance(timedelta(seconds=9))  # real time passes as well
    assert 0 < ctx.remaining_s <= 1
    clock.advance("1s")
    assert ctx.remaining_s == 0
    assert clock.advance(60) == datetime(2026, 3, 2, 0, 1, 10, tzinfo=UTC)
    assert clock.advance(timedelta(hours=-1)) == datetime(2026, 3, 1, 23, 1, 10, tzinfo=UTC)


def test_an_effect_that_was_done_is_not_done_again() -> None:
    ctx = context(attempt=2, effects={("charge", 7): "receipt of before"})
    assert billing.charge(ctx, invoice_id=7)["receipt"] == "receipt of before"
    assert billing.sent == []


def test_what_the_handler_recorded_is_seen() -> None:
    ctx = context()
    billing.charge(ctx, invoice_id=7)
    assert ctx.effects == {"charge:7": "receipt 7"}
    with pytest.raises(billing.Declined):
        billing.charge(ctx, invoice_id=-1)
    assert ctx.effects["charge:-1"] is UNKNOWN


@pytest.mark.parametrize(("on_unknown", "did"), [("again", ["did it"]), ("skip", [])])
def test_an_unknown_effect_is_decided_as_in_a_tick(on_unknown: Any, did: list[str]) -> None:
    done = []
    ctx = context(effects={"mail": UNKNOWN})
    with ctx.effect("mail", on_unknown=on_unknown) as effect:
        assert effect.unknown
        if not effect.done:
            done.append("did it")
    assert done == did
    with pytest.raises(EffectUnknown), context(effects={"mail": UNKNOWN}).effect("mail", on_unknown="stop"):
        pass


def test_an_effect_that_did_nothing_was_never_begun() -> None:
    ctx = context()
    with suppress(ConnectionError), ctx.effect("mail") as effect:
        effect.did_nothing()
        raise ConnectionError
    assert ctx.effects == {}


def test_work_of_several_steps_goes_on_after_the_last_one_done() -> None:
    ctx = context(steps={"render": "a.pdf"})
    with ctx.step("render") as rendered:
        assert (rendered.done, rendered.result) == (True, "a.pdf")
    with ctx.step("send") as sent:
        assert not sent.done
        with pytest.raises(UsageError, match="already open"), ctx.step("send"):
            pass
    assert list(ctx.effects) == ["job:1:step:render", "job:1:step:send"]


def test_a_transaction_is_a_savepoint_on_the_connection_that_was_given() -> None:
    with create_engine("sqlite://", poolclass=NullPool).connect() as connection:
        connection.execute(text("CREATE TABLE t (n int)"))
        ctx = context(connection=connection)
        with ctx.transaction() as given:
            given.execute(text("INSERT INTO t VALUES (1)"))
            with pytest.raises(UsageError, match=r"inside ctx\.transaction"), ctx.effect("mail"):
                pass
            ctx.result = {"n": 1}
        assert (ctx.succeeded, ctx.result) == (True, {"n": 1})
        broken = context(connection=connection)
        with pytest.raises(ZeroDivisionError), broken.transaction() as given:
            1 / given.execute(text("INSERT INTO t VALUES (2) RETURNING 0")).scalar_one()
        assert not broken.succeeded
        assert connection.execute(text("SELECT n FROM t")).scalars().all() == [1]
        connection.rollback()


def test_a_transaction_without_a_connection_says_what_to_give() -> None:
    with pytest.raises(UsageError, match=r"context\(connection=…\)"), context().transaction():
        pass


def test_a_handler_that_finishes_its_own_transaction_is_seen_to() -> None:
    ctx = context()
    ctx.finish(object())  # type: ignore[arg-type]
    assert ctx.succeeded
    with pytest.raises(UsageError, match="after the job's success"):
        ctx.finish(object())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [{"tries": 0}, {"scheduled_for": datetime(2026, 3, 2)}, {"idempotency_key": ("invoice", None)}],  # noqa: DTZ001
)
def test_fields_that_cannot_be_meant_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        context(**fields)


def test_what_a_handler_says_of_its_progress_is_kept_and_judged_as_in_a_tick() -> None:
    ctx = context()
    for number in range(3):
        ctx.progress(number, of=2, note=f"step\n{number}")
    ctx.progress(Decimal("2.5"))  # type: ignore[arg-type]
    assert ctx.reported[-2:] == [(2, 2, r"step\n2"), (2.5, None, None)]
    for wrong in (-1, float("nan"), float("inf"), "many", None, 1e300):
        with pytest.raises(UsageError, match=r"ctx\.progress\(done="):
            ctx.progress(wrong)  # type: ignore[arg-type]
    assert len(ctx.reported) == 4
