"""A rolling deploy: old and new code, old and new file, ticking on one database while jobs run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import until
from support.ticking import Project, Tick, events

OLD_FILE = """
run: {budget: 25s, lease: 30s, shutdown_grace: 3s}
schedules:
  kept: {every: 1m, job: t.quick}
  edited: {every: 10m, job: t.quick}
  goes: {every: 1m, job: d.goes}
"""
NEW_FILE = """
run: {budget: 25s, lease: 30s, shutdown_grace: 3s}
schedules:
  kept: {every: 1m, job: t.quick}
  edited: {every: 20m, job: t.quick}
  comes: {every: 1m, job: d.comes}
"""
OLD_CODE = """
@job("d.grows")
def grows(ctx, invoice_id):
    say("old-shape", ctx)

@job("d.goes")
def goes(ctx):
    say("goes", ctx)

@job("d.slow", timeout="15s")
def slow(ctx):
    say("slow-start", ctx)
    while not os.path.exists(os.path.join(HERE, "deployed")):
        ctx.check()
        time.sleep(0.01)
    say("slow-end", ctx)

@job("d.long", timeout="2m", isolation="process")
def long(ctx, gate):
    say("long-start", ctx)
    end = time.monotonic() + 60
    while not os.path.exists(gate) and time.monotonic() < end:
        ctx.check()
        time.sleep(0.02)
    say("long-end", ctx)
"""
NEW_CODE = """
@job("d.grows")
def grows(ctx, invoice_id, currency="EUR", lines=()):
    say("new-shape", ctx)

@job("d.comes")
def comes(ctx):
    say("comes", ctx)

@job("d.slow", timeout="15s")
def slow(ctx):
    say("slow-again", ctx)
"""
SHARED = "\n_effects = os.open({effects!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)\n"


@pytest.fixture
def old(database_url: str, new_project: Callable[[str], Project]) -> Project:
    return new_project(database_url)


@pytest.fixture
def new(database_url: str, new_project: Callable[[str], Project], old: Project) -> Project:
    return new_project(database_url)


def begin(host: Project, name: str) -> Tick:
    return host.start(env={"CRONJOBS_HOST": name})


@pytest.mark.slow
def test_a_deploy_under_way_loses_nothing_and_kills_nothing(old: Project, new: Project, tmp_path: Path) -> None:
    shared = SHARED.format(effects=str(old.folder / "effects"))
    old.configure(OLD_FILE, shared + OLD_CODE)
    new.configure(NEW_FILE, shared + NEW_CODE)
    gate = tmp_path / "gate"

    # Before: the old host alone, with work that outlasts the deploy.
    assert begin(old, "old").wait() == 0
    long_id = old.add("d.long", f'{{"gate": "{gate}"}}')
    slow_ids = [old.add("d.slow") for _ in range(2)]
    plain_ids = [old.add("t.quick") for _ in range(20)]
    leaving_id = old.add("d.goes")
    first = begin(old, "old")
    until(lambda: len(old.effects("slow-start")) == 2 and old.effects("long-start"), 20)

    # The new host is there. Its jobs have a new shape, and a type that the old one does not know.
    grown_ids = [new.add("d.grows", '{"invoice_id": 1, "currency": "USD", "lines": [1]}') for _ in range(10)]
    coming_ids = [new.add("d.comes") for _ in range(5)]
    old_shape_ids = [old.add("d.grows", '{"invoice_id": 2}') for _ in range(5)]
    first.send(signal.SIGTERM)  # what a deploy does to a tick
    ticks = [begin(new, "new"), begin(old, "old"), begin(new, "new"), begin(old, "old")]
    assert first.wait() == 128 + signal.SIGTERM
    old.open("deployed")
    assert [tick.wait() for tick in ticks[::2]] == [0] * 2
    # A job of the new type may be due before a tick of the new host is there that knows it: the old ones say so.
    assert {tick.wait() for tick in ticks[1::2]} <= {0, 3}

    # No host flaps: each applied its own file at most once.
    assert len(events(old.log(), "schedules.applied")) + len(events(new.log(), "schedules.applied")) == 2

    # After: the old host is gone; what it could not do goes to the new one.
    gate.touch()
    until(lambda: old.job(long_id)["status"] == "succeeded", 20)
    old.make_due()  # an old host puts a payload of new shape off for five minutes, no less
    for _ in range(2):
        assert begin(new, "new").wait() == 0
    done = old.times_ran("old-shape") + old.times_ran("new-shape") + old.times_ran("ran") + old.times_ran("comes")
    assert done.keys() >= {*grown_ids, *old_shape_ids, *plain_ids, *coming_ids}
    assert set(done.values()) == {1}
    assert old.times_ran("long-end") == {long_id: 1}
    for job_id in slow_ids:  # interrupted by the deploy, uncharged, and run by the new code
        assert old.outcomes(job_id) == ["interrupted", "succeeded"]
        assert old.job(job_id)["failures"] == 0
    # The one type that the new code has given up was run by the old host, or waits, listed, for somebody to decide.
    assert old.job(leaving_id)["status"] in ("succeeded", "queued")
    assert old.value("SELECT count(*) FROM cronjobs_jobs WHERE status IN ('dead', 'running')") == 0
    unfinished = old.value("SELECT count(*) FROM cronjobs_jobs WHERE finished_at IS NULL AND job_type <> 'd.goes'")
    assert unfinished == 0
    assert old.value("SELECT count(*) FROM cronjobs_jobs WHERE error_type = 'SignatureMismatch'") == (
        old.value("SELECT count(DISTINCT job_id) FROM cronjobs_job_runs WHERE error_type = 'SignatureMismatch'")
    )
