"""What a crash can repeat: jobs with uncommitted results. These are many in a group, and few with ``durable: each``."""

from __future__ import annotations

import pytest
from support.ticking import Project

from cronjobs.engine.tick.claim_planner import MOST_AHEAD

WORKERS = 4
JOBS = 300
YAML = f"run: {{workers: {WORKERS}}}\n"

HANDLERS = """
import itertools, signal, sqlite3
from contextlib import closing
_started = itertools.count(1)

def die_once():
    if next(_started) == 150 and not os.path.exists(os.path.join(HERE, "died")):
        open(os.path.join(HERE, "died"), "x").close()
        os.kill(os.getpid(), signal.SIGKILL)

@job("crash.each", durable="each")
def each(ctx):
    say("ran", ctx)
    die_once()

@job("crash.group")
def group(ctx):
    say("ran", ctx)
    die_once()

def connect():
    if not URL.startswith("sqlite"):
        import psycopg
        return psycopg.connect(URL)
    return sqlite3.connect(URL.removeprefix("sqlite:///"))

_last = threading.local()

@job("order.each", durable="each")
def one_after_another(ctx):
    before = getattr(_last, "job_id", None)
    if before is not None:
        with closing(connect()) as connection:
            found = connection.execute(f"SELECT status FROM cronjobs_jobs WHERE id = {before}").fetchone()
        say("saw-" + found[0], ctx)
    _last.job_id = ctx.job_id
"""


@pytest.mark.slow
@pytest.mark.parametrize(("job_type", "most"), [("crash.each", WORKERS), ("crash.group", MOST_AHEAD + WORKERS)])
def test_after_a_crash_only_what_was_not_committed_runs_again(project: Project, job_type: str, most: int) -> None:
    project.configure(YAML, HANDLERS)
    project.add_many(job_type, JOBS)
    assert project.tick().wait() == -9
    while project.statuses() != {"succeeded": JOBS}:
        assert len(project.ticks) < 10, project.statuses()
        project.make_due()
        project.tick()
    ran = project.times_ran()
    assert len(ran) == JOBS
    assert 1 <= sum(count - 1 for count in ran.values()) <= most


def test_a_worker_begins_nothing_before_the_end_of_a_durable_job_is_committed(project: Project) -> None:
    project.configure(YAML, f"URL = {project.url!r}\n" + HANDLERS)
    project.add_many("order.each", 60)
    project.tick()
    assert project.statuses() == {"succeeded": 60}
    seen = {effect.what for effect in project.effects()}
    assert seen == {"saw-succeeded"}
    assert len(project.effects()) >= 60 - WORKERS
