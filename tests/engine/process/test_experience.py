"""With a default timeout, jobs still start late in a tick if they are fast by experience. A wrong guess is released."""

from __future__ import annotations

import pytest
from support.ticking import Project

BUDGET_S = 6
DEFAULT_S = BUDGET_S / 3
YAML = f"run: {{workers: 2, budget: {BUDGET_S}s, every: 1m}}\n"

HANDLERS = """
_began = time.monotonic()

@job("t.brief")
def brief(ctx):
    say("ran", ctx)
    time.sleep(0.02)

@job("t.turns")  # brief, until one near the end of the first tick is not
def turns(ctx):
    say("ran", ctx)
    time.sleep(0.02)
    slow = os.path.join(HERE, "slow")
    if time.monotonic() - _began > 4 and not os.path.exists(slow):
        open(slow, "x").close()
        say("slow", ctx)
        time.sleep(60)
"""


def began_late(project: Project, tick: int) -> int:
    """How many jobs a tick began when their default timeout did not fit any more."""
    pid, started = project.ticks[tick].pid, project.ticks[tick].started
    return sum(each.pid == pid and each.at > started + BUDGET_S - DEFAULT_S + 0.2 for each in project.effects("ran"))


@pytest.mark.slow
def test_a_saturated_tick_is_used_to_its_end(project: Project) -> None:
    project.configure(YAML, HANDLERS)
    project.add_many("t.brief", 2000)
    assert project.tick().wait() == 0
    assert began_late(project, 0) > 20
    assert project.statuses().keys() == {"succeeded", "queued"}
    assert project.ticks[0].took_s < BUDGET_S + 2


@pytest.mark.slow
@pytest.mark.either
def test_a_job_that_took_longer_than_expected_goes_back_uncharged_and_its_type_to_its_timeout(project: Project) -> None:
    project.configure(YAML, HANDLERS)
    project.add_many("t.turns", 2000)
    project.tick()
    [slow] = project.effects("slow")
    assert project.ticks[0].took_s < BUDGET_S + 2
    [(did,)] = project.sql("SELECT CAST(did AS text) FROM cronjobs_ticks")
    assert '"overran"' in did
    assert '"t.turns"' in did
    project.tick()
    assert began_late(project, 1) == 0
    row = project.job(slow.job_id)
    assert (row["failures"], row["losses"]) == (0, 0)
    outcomes = project.sql(f"SELECT outcome FROM cronjobs_job_runs WHERE job_id = {slow.job_id} ORDER BY attempt")
    assert outcomes[0] == ("interrupted",)
