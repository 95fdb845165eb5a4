"""What a running attempt reports with its renewals: always safe to show, and complete for readers who follow it."""

from __future__ import annotations

import random
from itertools import count

import pytest

from cronjobs.desk.insight.tailing import Tail, TailPart
from cronjobs.engine.execution.reporting import Reporting
from cronjobs.engine.rules.lease import Lease, Report
from cronjobs.engine.rules.progress import LIVE_LIMIT, HowFar, Reported
from cronjobs.masking import mask, mask_urls, safe_until
from cronjobs.text import CappedText, clean

LEASE = Lease(1, 1, "here")
ONE_LINE = frozenset({"correct-horse", "aaaaaaaab", "ab-ab-cd-ab", "päßwörter"})
SECRETS = ONE_LINE | {"line one of it\nline two of it"}
WORDS = [
    *(
        "ok",
        "\n",
        " ",
        "....",
        "aaaaaaaa",
        "line one",
        "correct-",
        "horse",
        "ab-ab-",
        "\r\n",
        "日本",
        "é",
        "\x1b[2J",
        "\0",
    ),
    *("postgres://", "u:", "hunter22", "@db/x", "?password=", "hunter22", '"', "\ud800"),
]
NUMBERS = count()  # so that no part is like another


def renewed(reporting: Reporting) -> Report | None:
    report = reporting.news(LEASE, 0.0, ONE_LINE)
    if report is not None:
        reporting.written(report)
    return report


def printed(dice: random.Random, secrets: frozenset[str] = ONE_LINE) -> str:
    parts = [dice.choice([*WORDS, *sorted(secrets)]) for _ in range(dice.randrange(1, 12))]
    return "".join(f"{''.join(parts)}{next(NUMBERS)}" for _ in range(dice.choice([1, 1, 1, 1, 20, 400])))


@pytest.mark.parametrize("seed", range(60))
def test_whoever_follows_sees_each_byte_of_the_stored_output_once_or_hears_how_many_are_missing(seed: int) -> None:
    dice = random.Random(seed)
    reporting, tail, output = Reporting(), Tail(), CappedText()
    reporting.output = output
    output.write("x://y\n")  # so that what looks like a URL's password is masked in all of it
    told: list[TailPart] = []
    row = ("", 0)
    for _ in range(dice.randrange(1, 12)):
        for _ in range(dice.randrange(3)):
            output.write(printed(dice))
        report = renewed(reporting)
        if report is not None:
            row = (row[0] if report.live_output is None else report.live_output, report.reported.output_end)
            assert len(row[0].encode()) <= LIVE_LIMIT
        if dice.random() < 0.7:  # who follows looks now and then
            told.append(tail.live(*row))
    stored = clean(mask(output.text() or "", ONE_LINE))
    told += tail.stored(stored)
    whole = "".join(text for _, text in told)
    if not any(left_out for left_out, _ in told):
        assert whole == stored
    at, missing = 0, 0
    for left_out, text in told:  # in order, and nothing twice
        missing += left_out
        if text and (found := stored.find(text, at)) >= 0:
            assert found == at or missing or "bytes left out" in stored
            at, missing = found + len(text), 0
        elif text:  # the stored output has a gap of its own
            assert "bytes left out" in stored


@pytest.mark.parametrize("seed", range(60))
def test_no_part_of_a_secret_is_ever_in_a_row(seed: int) -> None:
    """Judged by what is certain: at no moment may the row show a beginning or an end of what is masked later."""
    dice = random.Random(1000 + seed)
    secret = "".join(dice.choice("abcdefgh") for _ in range(24))
    text = "".join(dice.choice([secret, " ", "\n", "word ", ".", "x" * 5000]) for _ in range(12))
    reporting, output = Reporting(), CappedText()
    reporting.output = output
    pieces = [secret[n : n + 4] for n in range(len(secret) - 3)]
    at = 0
    while at < len(text):
        step = dice.choice([1, 3, 7, 30, 6000])
        output.write(text[at : at + step])
        at += step
        report = reporting.news(LEASE, 0.0, frozenset({secret}))
        if report is not None and report.live_output is not None:
            assert not any(piece in report.live_output for piece in pieces)


@pytest.mark.parametrize("seed", range(60))
def test_masking_a_text_in_safe_parts_is_masking_the_whole(seed: int) -> None:
    dice = random.Random(seed)
    text, masked, held = "".join(printed(dice, SECRETS) for _ in range(3))[:3000], "", ""
    at = 0
    while at < len(text):
        step = dice.randrange(1, 40)
        held += text[at : at + step]
        at += step
        ready = safe_until(held, SECRETS)
        masked, held = masked + mask_urls(mask(held[:ready], SECRETS)), held[ready:]
    assert masked + mask_urls(mask(held, SECRETS)) == mask_urls(mask(text, SECRETS))


def test_what_says_nothing_is_no_news_and_neither_is_what_was_written() -> None:
    reporting = Reporting()
    assert renewed(reporting) is None
    reporting.output = CappedText()
    assert renewed(reporting) is None
    reporting.output.write("begun\n")
    first = renewed(reporting)
    assert first is not None
    assert first.live_output == "begun\n"
    assert renewed(reporting) is None
    reporting.say(HowFar(1, 2), 5.0)
    second = renewed(reporting)
    assert second is not None
    assert second.live_output is None
    assert second.reported == Reported(HowFar(1, 2), 5.0, 1, 5.0, len("begun\n"))


def test_what_a_renewal_could_not_write_goes_with_the_next_one() -> None:
    reporting, tail = Reporting(), Tail()
    reporting.output = CappedText()
    reporting.output.write("one\n")
    lost = reporting.news(LEASE, 0.0, frozenset())
    reporting.output.write("two\n")
    report = renewed(reporting)
    assert lost is not None
    assert report is not None
    assert report.live_output == "one\ntwo\n"
    assert tail.live(report.live_output, report.reported.output_end).text == "one\ntwo\n"


def test_the_pace_is_of_this_attempt_and_begins_again_when_the_work_does() -> None:
    reporting = Reporting()
    for done, of, at in ((500, 1000, 10.0), (600, 1000, 20.0)):
        reporting.say(HowFar(done, of), at)
    report = renewed(reporting)
    assert report is not None
    assert report.reported[1:4] == (20.0, 500, 10.0)
    reporting.say(HowFar(3, 10), 30.0)
    report = renewed(reporting)
    assert report is not None
    assert report.reported[1:4] == (30.0, 3, 30.0)


def test_a_command_says_it_in_a_line_of_its_output_even_if_that_comes_in_two_parts() -> None:
    reporting = Reporting()
    said = []
    for part in ("working\n::progress 3/1", "20 two parts\nand more\n::progress", " x\n" + "y" * 100_000):
        reporting.read(part, 1.0)
        said.append(reporting.progress)
    assert said == [None, HowFar(3, 120, "two parts"), HowFar(3, 120, "two parts")]


def test_the_output_so_far_shows_no_part_of_a_secret_that_is_still_being_written() -> None:
    reporting, output, secrets = Reporting(), CappedText(), frozenset({"hunter2-correct-horse"})
    assert reporting.output_so_far(secrets) is None
    reporting.output = output
    output.write("step 1: hunter2-correct-horse\nstep 2: hunter2-cor")
    assert reporting.output_so_far(secrets) == "step 1: ***\nstep 2: "
