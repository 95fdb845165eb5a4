"""What a guard refuses without asking the database, and how a supervisor notices a deploy."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from cronjobs.contrib.dask import guard
from cronjobs.contrib.dask.check_cluster import faults
from cronjobs.contrib.dask.code_on_disk import changes_from_now
from cronjobs.contrib.dask.messages import GuardReport, Spec, versions
from cronjobs.contrib.dask.permit import HeldPermit
from cronjobs.contrib.dask.rules import Versions
from cronjobs.contrib.dask.worker_home import NO_DATABASE
from cronjobs.engine.config.settings import ExecutorSettings, Settings
from cronjobs.engine.execution.attempt import Attempt
from cronjobs.engine.jobs.job_types import JobType
from cronjobs.engine.jobs.registry import Registration
from cronjobs.engine.store.tokens import Permit, TokenKey
from cronjobs.model import Job, RetryPolicy


def handler() -> None: ...


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.chdir(tmp_path)
    for name in ("CRONJOBS_TOKEN_URL", "CRONJOBS_DATABASE_URL", "CRONJOBS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings(
        file=tmp_path / "cronjobs.yaml",
        folder=tmp_path,
        database="postgresql://me:hidden@db/shop",
        env=(("API_KEY", "hidden"),),
        secrets=frozenset({"hidden"}),
    )
    registration = Registration("t.far", handler)
    job_type = JobType("t.far", timedelta(seconds=9), RetryPolicy(), registration, executor="cluster")
    attempt = Attempt(Job(7, "t.far", {"n": 1}, attempt=2, locked_by="host:me"), job_type, job_type.timeout)
    return Spec.of(attempt, TokenKey(7, 2, "secret-token"), settings, "topic")


def test_a_spec_comes_back_as_it_was_without_what_is_nobodys_business(spec: Spec) -> None:
    text = spec.encode()
    assert "hidden" not in text
    again = Spec.decode(text)
    assert (again.key, again.versions, again.topic, again.lease_s) == (spec.key, versions(), "topic", 60.0)
    assert again.request.job == spec.request.job
    assert (again.request.timeout_s, again.request.source) == (9.0, spec.request.source)
    assert spec.request.source is not None


def test_a_worker_with_other_versions_runs_nothing(spec: Spec) -> None:
    other = replace(spec, versions=Versions("9.9.9", "3.1"))
    found = GuardReport.decode(guard.run(other.encode()))
    assert found.said == "differs"
    assert "the claiming host has 9.9.9" in found.why


def test_a_worker_that_cannot_take_a_token_runs_nothing(spec: Spec) -> None:
    found = GuardReport.decode(guard.run(spec.encode()))
    assert (found.said, NO_DATABASE in found.why) == ("differs", True)


def test_a_worker_whose_own_file_is_broken_says_so(spec: Spec) -> None:
    Path("cronjobs.yaml").write_text("database: [")
    found = GuardReport.decode(guard.run(spec.encode()))
    assert found.said == "differs"
    assert "cronjobs.yaml" in found.why


def test_a_guard_that_breaks_off_confirms_its_permit_no_more(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permit that is confirmed further would hold the attempt for as long as its supervisor lives."""

    def broken(_spec: Spec, _settings: Settings, permit: HeldPermit) -> GuardReport:
        permit.watch()
        raise MemoryError

    monkeypatch.setenv("CRONJOBS_TOKEN_URL", "sqlite:///unused.db")
    monkeypatch.setattr(HeldPermit, "take", lambda _: Permit("yours", 60.0))
    monkeypatch.setattr(guard, "_run", broken)
    with pytest.raises(MemoryError):
        guard.run(spec.encode())
    for thread in threading.enumerate():
        if thread.name == "cronjobs-permit":
            thread.join(60)
            assert not thread.is_alive()
    assert not guard.stop(*spec.key[:2], "cancelled")


def test_nobody_is_stopped_who_does_not_run_here() -> None:
    assert not guard.stop(7, 2, "cancelled")


def test_a_deploy_is_seen_on_the_disk(tmp_path: Path) -> None:
    file, other = tmp_path / "cronjobs.yaml", tmp_path / "new.yaml"
    file.write_text("database: x")
    other.write_text("database: x")
    has_changed = changes_from_now([file], [Registration("t.far", handler)])
    assert not has_changed()
    other.rename(file)  # the same length, and perhaps the same second
    assert has_changed()


def test_what_is_wrong_with_a_cluster_is_said_worker_by_worker() -> None:
    here = versions()
    well = {"cronjobs": here.cronjobs, "python": here.python, "fault": None}
    executor = ExecutorSettings("cluster", "tcp://127.0.0.1:1", resources=(("GPU", 1.0),))
    assert list(faults(executor, {}, {})) == ["the scheduler has no workers"]
    assert list(faults(executor, {"a": {"resources": {"GPU": 2}}}, {"a": well})) == []
    found = list(
        faults(
            executor,
            {"a": {}, "b": {}},
            {"a": ModuleNotFoundError("No module named 'cronjobs'"), "b": well | {"python": "3.1", "fault": "no way"}},
        )
    )
    assert found == [
        "no worker offers the resource GPU=1: start workers with --resources GPU=1",
        "worker a cannot run cronjobs: ModuleNotFoundError: No module named 'cronjobs'",
        f"worker b: the worker has Python 3.1 (the claiming host has {here.python})",
        "worker b: no way",
    ]
