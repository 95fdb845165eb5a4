"""Limits by concurrency key: which jobs may begin beside the running ones, and how the file sets limits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configfile import DATABASE, cases, read

from cronjobs.engine.rules.concurrency import Candidate, Full, Limit, choose, closed, full, reached, waiting_by_limit

SMTP = Limit("smtp:", most=2)
EACH = Limit("tenant:", each=1)


def taken(limits: list[Limit], running: dict[str, int], *keys: str | None) -> list[str | None]:
    candidates = [Candidate(number, key) for number, key in enumerate(keys)]
    return [keys[number] for number in choose(candidates, limits, running, before=0, free=100).taken]


def test_a_prefix_is_text_not_a_pattern() -> None:
    assert taken([Limit("a%_", most=1)], {"a%_": 1}, "abc", "a%_b", "A%_") == ["abc", "A%_"]


def test_a_careful_job_that_must_wait_ends_the_row_and_one_that_is_full_does_not() -> None:
    row = [Candidate(1, "smtp:a"), Candidate(2, "smtp:a", no_prefetch=True), Candidate(3, None)]
    assert choose(row, [Limit("smtp:", most=1)], {}, before=0, free=1).taken == (1, 3)
    choice = choose(row, [SMTP], {}, before=0, free=1)
    assert (choice.taken, choice.cut) == ((1,), True)
    assert choose(row, [SMTP], {}, before=1, free=3).taken == (1, 2, 3)


def test_what_is_full_names_whole_prefixes_and_single_keys() -> None:
    found = full([SMTP, EACH], {"smtp:a": 1, "smtp:b": 1, "tenant:1": 1, "x": 9})
    assert found == Full(frozenset({"smtp:"}), frozenset({"tenant:1"}))
    assert full(closed([SMTP, EACH]), {}).prefixes == {"smtp:", "tenant:"}


def test_a_due_job_waits_for_the_first_limit_that_stops_it() -> None:
    running = {"smtp:a": 2, "tenant:1": 1}
    due = {"smtp:a": 4, "smtp:b": 3, "tenant:1": 2, "tenant:2": 1}
    assert waiting_by_limit([SMTP, EACH], running, due) == {SMTP: 7, EACH: 2}
    assert reached([SMTP], running, None) is None


KEYS = st.sampled_from([None, "a", "a:1", "a:2", "b", "b:1"])
LIMITS = st.lists(
    st.builds(
        Limit,
        st.sampled_from(["a", "a:", "a:1", "b"]),
        st.none() | st.integers(1, 4),
        st.none() | st.integers(1, 3),
    ),
    max_size=3,
    unique_by=lambda limit: limit.prefix,
)


@given(LIMITS, st.lists(KEYS, max_size=20), st.lists(KEYS, max_size=6))
def test_no_limit_is_passed_and_nobody_is_left_out_for_nothing(
    limits: list[Limit], keys: list[str | None], runs: list[str | None]
) -> None:
    running = Counter(key for key in runs if key is not None)
    chosen = choose([Candidate(n, key) for n, key in enumerate(keys)], limits, running, before=0, free=100)
    after = Counter(running)
    for number, key in enumerate(keys):
        stopped = key is not None and any(
            key.startswith(limit.prefix)
            and (
                (
                    limit.most is not None
                    and sum(n for k, n in after.items() if k.startswith(limit.prefix)) >= limit.most
                )
                or (limit.each is not None and after[key] >= limit.each)
            )
            for limit in limits
        )
        assert stopped == (number not in chosen.taken)
        if not stopped and key is not None:
            after[key] += 1
    assert chosen.running == after


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_folder")
def test_the_forms_of_a_limit() -> None:
    found = read(f'{DATABASE}limits: {{"smtp:": 4, "tenant:": {{each: 2}}, "t:": {{most: 20, each: 2}}}}')
    assert found.problems == ()
    assert found.limits == (Limit("smtp:", 4), Limit("tenant:", each=2), Limit("t:", 20, 2))
    assert read(f"{DATABASE}limits:").limits == read(DATABASE).limits == ()


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("line", "said"),
    cases("""
"smtp:": 0
    2:19: limits."smtp:": 0 would let no job start: to stop jobs for a while, run "cronjobs pause --queue NAME"
"smtp:": four
    2:19: limits."smtp:": "four" is not a whole number: write a number in 1–10000
"smtp:": {each: 0}
    2:26: limits."smtp:".each: 0 would let no job start: to stop jobs for a while, run "cronjobs pause --queue NAME"
"smtp:": {}
    2:19: limits."smtp:": set "most" (for all keys together), "each" (for each key), or both
"smtp:": {mots: 4}
    2:20: limits."smtp:".mots: unknown key, did you mean "most"?
"smtp:": [4]
    2:19: limits."smtp:": write one value, not a list
"smtp:": 4, "smtp:": 5
    2:22: limits."smtp:": this key is already on line 2: delete one of the two
"": 4
    2:10: limits.: "" is not a concurrency_key prefix: write 1–200 characters
"""),
)
def test_a_bad_limit_is_said_and_lets_none_of_its_jobs_begin(line: str, said: str) -> None:
    found = read(f"{DATABASE}limits: {{{line}, ok: 3}}")
    assert [str(problem) for problem in found.problems] == [f"cronjobs.yaml:{said}"]
    bad, ok = found.limits
    assert (bad.most, ok) == (0, Limit("ok", 3))
    assert '"cronjobs check" says why' in bad.reached


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("text", ["limits: 4", 'limit: {"smtp:": 4}', "limits: {a: 1}\nlimits: {b: 2}"])
def test_where_no_limit_can_be_read_no_job_with_a_key_begins(text: str) -> None:
    found = read(f"{DATABASE}{text}")
    assert len(found.problems) == 1
    assert taken(list(found.limits), {}, "smtp:a", "a", None) == [None]
