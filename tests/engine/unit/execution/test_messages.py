"""A message from a tick to a process that it starts is decoded unchanged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cronjobs.engine.config.settings import RunSettings, Settings
from cronjobs.engine.execution.child_protocol import Request
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.engine.tick.long_jobs import Handover
from cronjobs.model import ExitCodes, Job, RetryPolicy

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_a_child_gets_the_job_and_what_it_needs_of_the_settings() -> None:
    job = Job(7, "app.pay", {"n": 1}, {"trace": "a"}, attempt=2, locked_by="h:b:1:1:1:tick", run_at=AT, started_at=AT)
    settings = Settings(
        file=Path("/srv/app/cronjobs.yaml"),
        folder=Path("/srv/app"),
        database="sqlite:////srv/jobs.db",
        imports=("app.jobs",),
        python_path=(Path("/srv/lib"),),
        setup="app.setup",
        env=(("TZ", "UTC"),),
        around=("app.scope",),
        run=RunSettings(shutdown_grace=timedelta(seconds=8)),
    )
    request = Request(job, settings, 1000.5, 30.0, "2", "a hash")
    assert Request.decode(request.encode()) == request


def test_a_long_jobs_process_gets_what_the_tick_knew_of_its_type() -> None:
    retry = RetryPolicy(max_attempts=3, delays=["1s", "2m"], retry_on=[OSError])
    handover = Handover(
        config="/srv/app/cronjobs.yaml",
        database="sqlite:////srv/jobs.db",
        job_id=7,
        job_type="app.pay",
        attempt=2,
        locked_by="h:b:1:1:1:tick",
        timeout_s=3600.0,
        is_command=False,
        max_memory=None,
        success=[0, 3],
        permanent=[78],
        row_policy=AttemptPolicy(retry).text(),
    )
    back = Handover.decode(handover.encode())
    assert back == handover
    job_type = back.as_type({})
    assert (job_type.retry, job_type.timeout) == (retry, timedelta(hours=1))
    assert job_type.exit_codes == ExitCodes(frozenset({0, 3}), frozenset({78}))
