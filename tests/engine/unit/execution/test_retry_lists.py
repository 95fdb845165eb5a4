"""Which failures ``retry_on`` and ``give_up_on`` make permanent: in code, by name, for handlers and for commands."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cronjobs import events
from cronjobs.clock import SYSTEM
from cronjobs.engine.config.load import load
from cronjobs.engine.execution.attempt import Attempt, WorkerContext
from cronjobs.engine.execution.handler import run_attempt
from cronjobs.engine.execution.raised import outcome_of
from cronjobs.engine.jobs import job_types
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.rules.ending import decide
from cronjobs.engine.rules.retry import permanent
from cronjobs.errors import GiveUp, RetryLater, Snooze
from cronjobs.model import (
    CancelledByRequest,
    Failed,
    Finished,
    Interrupted,
    Job,
    Lost,
    Outcome,
    RetryPolicy,
    Snoozed,
    Status,
    Succeeded,
    TimedOut,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOB = Job(id=1, job_type="t", payload={}, attempt=1)


class Declined(ValueError):
    """The name that is stored for this class is ``test_retry_lists.Declined``."""


def raised(error: BaseException) -> Outcome:
    attempt = Attempt(JOB, JobType("t", timedelta(seconds=1), RetryPolicy()), timedelta(seconds=1))
    return outcome_of(error, attempt, SYSTEM)


def exit_status(status: int, *, final: bool = False) -> Failed:
    return Failed("exit", f"exit-{status}", permanent=final, kinds=(f"exit-{status}",))


DECLINED = raised(Declined("card"))
REFUSED = raised(ConnectionRefusedError("no"))
KILLED = Failed("killed by SIGKILL", "SIGKILL", kinds=("SIGKILL",))
MISMATCH = Failed("shape", "SignatureMismatch", at_least=timedelta(minutes=5))
NOT_STARTED = Failed("not found", "CommandNotFound")


def test_a_failure_bears_the_names_of_its_class_and_of_those_above_it() -> None:
    assert isinstance(DECLINED, Failed)
    assert isinstance(REFUSED, Failed)
    assert DECLINED.error_type == f"{__name__}.Declined"
    assert DECLINED.kinds == (f"{__name__}.Declined", "ValueError", "Exception")
    assert REFUSED.kinds == ("ConnectionRefusedError", "ConnectionError", "OSError", "Exception")
    exited = raised(SystemExit(3))
    assert isinstance(exited, Failed)
    assert exited.kinds == ("SystemExit",)


@pytest.mark.parametrize("error", [GiveUp("x"), RetryLater("5m"), Snooze("no such delay")])
def test_what_the_handler_classified_has_no_kinds(error: BaseException) -> None:
    outcome = raised(error)
    assert isinstance(outcome, Failed)
    assert outcome.kinds == ()


def test_classes_are_kept_as_names() -> None:
    policy = RetryPolicy(retry_on=[ConnectionError, "exit-75"], give_up_on=(Declined, json.JSONDecodeError))
    assert policy.retry_on == ("ConnectionError", "exit-75")
    assert policy.give_up_on == (f"{__name__}.Declined", "json.decoder.JSONDecodeError")
    assert hash(policy) == hash(RetryPolicy(retry_on=policy.retry_on, give_up_on=policy.give_up_on))


@pytest.mark.parametrize(
    ("lists", "outcome", "is_permanent"),
    [
        # without lists: as the outcome says
        ({}, DECLINED, False),
        ({}, TimedOut(), False),
        ({}, exit_status(65, final=True), True),
        # give_up_on: the class, one above it, the end of its name, and nothing else
        ({"give_up_on": [Declined]}, DECLINED, True),
        ({"give_up_on": [ValueError]}, DECLINED, True),
        ({"give_up_on": ["Declined"]}, DECLINED, True),
        ({"give_up_on": ["clined"]}, DECLINED, False),
        ({"give_up_on": ["retry_lists.Declined"]}, DECLINED, False),
        ({"give_up_on": ["other.Declined"]}, DECLINED, False),
        ({"give_up_on": [KeyError]}, DECLINED, False),
        ({"give_up_on": [OSError]}, REFUSED, True),
        # retry_on: whatever is not named is permanent
        ({"retry_on": [OSError]}, REFUSED, False),
        ({"retry_on": [OSError]}, DECLINED, True),
        ({"retry_on": [Exception]}, DECLINED, False),
        ({"retry_on": [Exception]}, raised(SystemExit(3)), True),
        # in both lists: give_up_on wins
        ({"retry_on": [OSError], "give_up_on": [ConnectionRefusedError]}, REFUSED, True),
        ({"retry_on": [ConnectionRefusedError], "give_up_on": [OSError]}, REFUSED, True),
        ({"retry_on": [OSError], "give_up_on": [ConnectionResetError]}, REFUSED, False),
        # commands
        ({"give_up_on": ["exit-3"]}, exit_status(3), True),
        ({"give_up_on": ["exit-3"]}, exit_status(33), False),
        ({"give_up_on": ["SIGKILL"]}, KILLED, True),
        ({"retry_on": ["exit-75", "SIGKILL"]}, exit_status(75), False),
        ({"retry_on": ["exit-75", "SIGKILL"]}, KILLED, False),
        ({"retry_on": ["exit-75"]}, exit_status(1), True),
        ({"retry_on": ["exit-65"]}, exit_status(65, final=True), True),
        # errors that the lists do not decide
        ({"retry_on": [KeyError]}, MISMATCH, False),
        ({"give_up_on": ["SignatureMismatch"]}, MISMATCH, False),
        ({"retry_on": ["exit-75"]}, NOT_STARTED, False),
        ({"retry_on": [KeyError]}, raised(RetryLater("5m")), False),
        ({"give_up_on": ["RetryLater", Exception]}, raised(RetryLater("5m")), False),
        ({"retry_on": ["GiveUp"]}, raised(GiveUp("void")), True),
        ({"retry_on": [KeyError]}, TimedOut(), False),
        ({"give_up_on": [TimeoutError, Exception]}, TimedOut(), False),
        ({"give_up_on": ["TimedOut"]}, TimedOut(), True),
        ({"retry_on": [KeyError], "give_up_on": [Exception]}, Lost(), False),
        ({"retry_on": [KeyError], "give_up_on": [Exception]}, Interrupted(), False),
        ({"give_up_on": [Exception]}, Succeeded(), False),
        ({"give_up_on": [Exception]}, CancelledByRequest(), False),
        ({"give_up_on": [Exception]}, Snoozed(NOW), False),
    ],
)
def test_the_lists_decide_what_is_permanent(lists: dict[str, Any], outcome: Outcome, is_permanent: bool) -> None:
    policy = RetryPolicy(**lists)
    assert permanent(policy, outcome) is is_permanent
    after = decide(JOB, outcome, policy, NOW, 0)
    assert after.permanent is is_permanent
    assert (after.status is Status.DEAD) is is_permanent
    if is_permanent:
        assert (after.failures, after.run_at) == (1, None)


def test_a_handlers_own_timeout_error_is_no_time_out() -> None:
    policy = RetryPolicy(give_up_on=["TimedOut"], retry_on=[TimeoutError])
    assert not permanent(policy, raised(TimeoutError("the provider's")))


def test_the_log_tells_the_permanent_from_the_last_try() -> None:
    def told(policy: RetryPolicy, outcome: Outcome) -> str:
        after = decide(JOB, outcome, policy, NOW, 0)
        event = events.job_ended(Finished(JOB, outcome), after, policy, Path("/srv/shop"))
        assert event.name == "job.dead"
        return str(event.facts["tries"])

    assert told(RetryPolicy(give_up_on=[ValueError]), DECLINED) == "1 of 10, permanent"
    assert told(RetryPolicy(retry_on=[OSError]), DECLINED) == "1 of 10, permanent"
    assert told(RetryPolicy(), raised(GiveUp("void"))) == "1 of 10, permanent"
    assert told(RetryPolicy(max_attempts=1), DECLINED) == "1 of 1"


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({"give_up_on": ["card declined"]}, "'card declined' is not a kind of failure: write ValueError"),
        ({"give_up_on": [""]}, "is not a kind of failure"),
        ({"give_up_on": ["exit-1234"]}, "is not a kind of failure"),
        ({"give_up_on": [int]}, "is not a kind of failure"),
        ({"give_up_on": [ValueError("an instance")]}, "is not a kind of failure"),
        ({"give_up_on": ValueError}, r"give_up_on is a list: write \[ValueError\]"),
        ({"retry_on": "OSError"}, r"retry_on is a list: write \[OSError\]"),
        ({"retry_on": []}, "omit it"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(lists: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RetryPolicy(**lists)


# --- through the file, a worker and a real command --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "status", "outcome", "is_permanent"),
    [
        ("", 3, Failed, False),
        ("success_exit_codes: [0, 3]", 3, Succeeded, False),
        ("success_exit_codes: [3]", 0, Failed, False),
        ("", 65, Failed, True),
        ("retry_exit_codes: [65]", 65, Failed, False),
        ("retry_exit_codes: [65]", 78, Failed, True),
        ("retry: {give_up_on: [exit-3]}", 3, Failed, True),
        ("retry: {retry_on: [exit-75]}", 75, Failed, False),
        ("retry: {retry_on: [exit-75]}", 1, Failed, True),
    ],
)
def test_a_commands_exit_status_means_what_its_entry_says(
    tmp_path: Path, entry: str, status: int, outcome: type, is_permanent: bool
) -> None:
    command = f"command: [sh, -c, exit {status}]" + (f", {entry}" if entry else "")
    (tmp_path / "cronjobs.yaml").write_text(f"database: sqlite:///x.db\njob_types: {{c: {{{command}}}}}\n")
    settings = load(tmp_path / "cronjobs.yaml", environ={})
    assert settings.problems == ()
    job_type = job_types.load(settings).types["c"]
    job = JOB._replace(job_type="c")
    finished = run_attempt(Attempt(job, job_type, job_type.timeout), WorkerContext(settings), SYSTEM)
    assert isinstance(finished.outcome, outcome)
    assert decide(job, finished.outcome, job_type.retry, NOW, 0).permanent is is_permanent
