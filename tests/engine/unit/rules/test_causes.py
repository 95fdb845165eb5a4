"""Which deaths have the same cause. Sameness is an equivalence, and the sums of groups match a plain count."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support.cases import judge

from cronjobs import events, masking
from cronjobs.engine.rules.causes import KEY_DIGITS, cause_of, causes
from cronjobs.engine.rules.error_groups import ERROR_READ
from cronjobs.errors import EffectUnknown

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
TEXTS = ["there is no invoice {}", "503 for invoice {}", "404 for invoice {}", "no user '{}'", "{}", "", None, "a\n{}"]
TYPES = ["billing.send", "mail.send", "a\x00b"]
CLASSES = ["GiveUp", "OSError", "", None]


def death(dice: random.Random, number: int) -> Any:
    text = dice.choice(TEXTS)
    error = text and text.format(dice.randint(0, 99_999))
    at = NOW + timedelta(minutes=dice.randint(-90, 90))
    return SimpleNamespace(
        id=number, job_type=dice.choice(TYPES), error_type=dice.choice(CLASSES), error=error, finished_at=at, text=text
    )


def made_of(row: Any) -> Any:
    """What the generator made it of, without its number: how an error is read plays no part in it."""
    read = row.text
    # What is nothing but a number is no cause of its own; the second line is not read.
    return row.job_type, row.error_type, {None: "", "a\n{}": "a"}.get(read, read)


def test_a_cause_shows_no_command_with_masked_numbers_in_it() -> None:
    name = cause_of("t.pay", "EffectUnknown", str(EffectUnknown("transfer:17")))
    assert name.error == "EffectUnknown: this effect was begun, but its result was never recorded: transfer:<n>"
    assert name == cause_of("t.pay", "EffectUnknown", str(EffectUnknown("transfer:18")))
    assert name != cause_of("t.pay", "EffectUnknown", str(EffectUnknown("mail:17")))
    late = cause_of("t.pay", "EffectUnknown", str(EffectUnknown("transfer:17", "attempt 1, which began it, timed out")))
    assert late.error == f"{name.error}; attempt <n>, which began it, timed out"
    assert cause_of("t.pay", "EffectUnknown", "who knows").error == "EffectUnknown: who knows"


def test_each_death_has_one_cause_and_the_counts_add_up() -> None:
    def case(dice: random.Random) -> None:
        rows = [death(dice, number) for number in range(1, dice.choice([1, 5, 200]))]
        found = causes(rows, None)
        assert sum(cause.jobs for cause in found) == len(rows)
        assert [cause.jobs for cause in found] == sorted((cause.jobs for cause in found), reverse=True)
        assert Counter(cause.jobs for cause in found) == Counter(Counter(map(made_of, rows)).values())
        assert len({cause.key for cause in found}) == len({cause.name for cause in found}) == len(found)
        for cause in found:
            its = [row for row in rows if cause_of(row.job_type, row.error_type, row.error) == cause.name]
            assert len({made_of(row) for row in its}) == 1
            assert cause.jobs == len(its)
            at, ids = [row.finished_at for row in its], [row.id for row in its]
            assert (cause.first_died_at, cause.last_died_at) == (min(at), max(at))
            assert (cause.first_job_id, cause.last_job_id) == (min(ids), max(ids))
            assert [row.finished_at for row in its if row.id == cause.sample_job_id] == [max(at)]
            assert not cause.new
        dice.shuffle(rows)
        assert causes(rows, None) == found

    judge(case, 40)


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        (["no such key: 'a'"], "KeyError: no such key: 'a'"),
        (["order 7 is missing\nin a", "order 7 is missing\nin b"], "KeyError: order 7 is missing"),
        (["order 7 is missing", "order 8 is missing"], "KeyError: order <n> is missing"),
        ([str(EffectUnknown("mail:17"))], f"KeyError: {EffectUnknown('mail:17')}"),
        ([f"{'x' * ERROR_READ}7"], f"KeyError: {'x' * ERROR_READ}…"),
        ([None], "KeyError"),
    ],
)
def test_a_cause_shows_the_text_that_all_its_deaths_share(errors: list[str | None], said: str) -> None:
    rows = [
        SimpleNamespace(id=n, job_type="t.pay", error_type="KeyError", error=error, finished_at=NOW)
        for n, error in enumerate(errors)
    ]
    [cause] = causes(rows, None)
    assert cause.error == said


def test_a_cause_is_new_if_none_of_it_died_before_the_file_was_changed() -> None:
    def case(dice: random.Random) -> None:
        rows = [death(dice, number) for number in range(1, 30)]
        before = [death(dice, number) for number in range(100, 100 + dice.choice([0, 20]))]
        found = causes(rows, NOW, before)
        old = {made_of(row) for row in rows if row.finished_at <= NOW} | {made_of(row) for row in before}
        for cause in found:
            [its, *_] = [row for row in rows if row.id == cause.sample_job_id]
            assert cause.new is (made_of(its) not in old)

    judge(case, 40)


def test_a_key_is_the_same_tomorrow() -> None:
    """The cause's name is written in mails, addresses and the audit trail, so it must not change."""
    name = cause_of("billing.send_invoice", "GiveUp", "there is no invoice 17")
    assert name.key == cause_of("billing.send_invoice", "GiveUp", "there is no invoice 4711\nsee below").key
    assert (name.key, name.error) == ("234d9b42d381", "GiveUp: there is no invoice <n>")
    assert len(name.key) == KEY_DIGITS
    assert cause_of("t", None, None).error == "(no message)"
    assert len(cause_of("\udcff", None, "x").key) == KEY_DIGITS


@pytest.fixture
def secret() -> Iterator[str]:
    masking.remember(["tr0ub4dor-and-3"])
    yield "tr0ub4dor-and-3"
    masking.remember(())


@pytest.mark.parametrize("before", ["", "x " * 50, "x " * (ERROR_READ // 2 - 4)])
def test_no_part_of_a_secret_is_in_a_cause_also_where_the_error_is_cut(secret: str, before: str) -> None:
    whole = f"{before}{secret} {'y' * ERROR_READ}"
    for error in (whole, whole[: ERROR_READ + 1]):
        message = cause_of("t", "E", error).message
        assert secret[:4] not in message
        assert "***" in message


def test_the_beginning_that_is_read_makes_the_same_cause_as_the_whole_error() -> None:
    def case(dice: random.Random) -> None:
        error = "".join(
            dice.choice(["a", " ", "17", "'", "…", "x@y.z ", "\n", "é"]) for _ in range(dice.randint(1, 900))
        )
        assert cause_of("t", "E", error) == cause_of("t", "E", error[: ERROR_READ + 1])

    judge(case, 60)


def test_crons_mail_is_throttled_by_the_same_rule() -> None:
    def dead(job_type: str, error_type: str, error: str) -> str:
        facts = {"job_id": 1, "job_type": job_type, "error_type": error_type, "error": error}
        return events.death_cause(events.Event("job.dead", facts, events.ERROR))

    assert dead("mail.send", "OSError", "503 for 17") == dead("mail.send", "OSError", "503 for 18")
    others = [
        ("mail.post", "OSError", "503 for 17"),
        ("mail.send", "GiveUp", "503 for 17"),
        ("mail.send", "OSError", "x"),
    ]
    assert len({dead(*each) for each in others} | {dead("mail.send", "OSError", "503 for 17")}) == 4
