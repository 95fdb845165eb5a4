"""Every flow is killed before each of its SQL statements, before and after each COMMIT, and in its handlers.

A real process is killed. Then the next runners do all work, and the judge checks that nothing was lost, and that
nothing ran twice unless "at least once" allows it.

Each statement that any flow sends has its kill in each run, on both databases, in the first flow that sends it. Besides
that: of effects, steps and transactions every twelfth point on one database and those halfway between on the other; of
other flows half as many, and of most on one of the two, in turn; and of a migration, which is one transaction, every
fourth. CRONJOBS_KILL_POINTS=all: all points of every flow on both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.crash.crash_flows import FLOWS
from engine.crash.crash_judge import Case, judge_death, judge_rest
from engine.crash.crash_lab import (
    Lab,
    PostgresStore,
    Ran,
    Shared,
    SqliteStore,
    Store,
    Zygote,
    an_hour_ago,
    kill_at_each_point,
)

pytestmark = pytest.mark.slow

# Alone, a test works on two processors; beside other workers a second lab is a second start, and no faster.
AT_ONCE = 1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, os.cpu_count() or 1)
SHOWN = 12  # complaints
ALL = os.environ.get("CRONJOBS_KILL_POINTS") == "all"
BOTH = ("sqlite", "postgresql")
ON_BOTH = ("claim, run, finish", "recovery of expired leases")


def cases() -> Iterator[tuple[str, str, int | None]]:
    """The database, the flow, and every which of its points is a kill; None: only those before what is new."""
    for number, (name, flow) in enumerate(FLOWS.items()):
        if not flow.empty:
            step = 1 if ALL else 12 if flow.everywhere else 24
            on_both = ALL or flow.everywhere or name in ON_BOTH
            for database in BOTH:
                yield database, name, step if on_both or database == BOTH[number % 2] else None


@pytest.fixture
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, labs: list[Lab]) -> Shared:
    of_session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        of_session = of_session.parent
    return Shared(of_session / f"killed-before-{type(labs[0].store).__name__}")


@pytest.fixture(scope="module")
def zygotes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Zygote]]:
    zygotes = [Zygote(tmp_path_factory.mktemp("zygote")) for _ in range(AT_ONCE)]
    yield zygotes
    for zygote in zygotes:
        zygote.close()


@pytest.fixture
def labs(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    zygotes: list[Zygote],
    _sqlite_template: Path,
    new_postgres_url: Callable[..., str],
) -> Iterator[list[Lab]]:
    """Several of the same kind, to share the work."""
    base, made = an_hour_ago(), []
    for number, zygote in enumerate(zygotes):
        folder = tmp_path / str(number) / "lab"
        folder.mkdir(parents=True)
        store: Store
        if request.param == "sqlite":
            store = SqliteStore(folder, _sqlite_template)
        else:
            store = PostgresStore(new_postgres_url(request.getfixturevalue("_postgres_template")))
        made.append(Lab(folder, store, zygote, base))
    yield made
    for lab in made:
        lab.store.close()


@pytest.mark.parametrize(("labs", "name", "step"), [*cases()], indirect=["labs"])
def test_a_flow_killed_at_any_point_loses_nothing_and_doubles_nothing(
    labs: list[Lab], name: str, step: int | None, shared: Shared
) -> None:
    flow = FLOWS[name]
    starts = {id(lab): lab.seed(name) for lab in labs}
    complaints: list[str] = []
    seen: set[str] = set()

    def look(lab: Lab, where: str, ran: Ran) -> None:
        died = ran.before is not None
        killed, did = lab.store.look(), lab.did()
        case = Case(starts[id(lab)], killed, killed, did, ran.pid, died, flow.leave)
        found = [*judge_death(case)]
        # What happens next depends only on this state. Many points lead to the same state, so one run for each is
        # enough.
        there = f"{died} {killed.like()} {[(line.what, line.job_id, line.attempt) for line in did]}"
        if there not in seen:
            seen.add(there)
            if flow.again and died:
                lab.go_on(name, "again")
            lab.go_on(name, "rest")
            case = Case(starts[id(lab)], killed, lab.store.look(), lab.did(), ran.pid, died, flow.leave)
            found += [*judge_rest(case), *flow.check(case)]
        complaints.extend(f"{name}, {where}\n    {complaint}" for complaint in found)

    points = kill_at_each_point(labs, name, shared, look, _each(labs, step))
    assert not complaints, f"{len(complaints)} complaints\n" + "\n".join(complaints[:SHOWN])
    assert points >= flow.floor, f"{points} points in {name!r}"


@pytest.mark.parametrize("labs", BOTH, indirect=True)
@pytest.mark.parametrize("name", [name for name, flow in FLOWS.items() if flow.empty])
def test_a_migration_killed_at_any_point_is_there_whole_or_not_at_all(
    labs: list[Lab], name: str, shared: Shared
) -> None:
    flow = FLOWS[name]
    whole, rows = labs[0].store.schema(), labs[0].store.look()
    for lab in labs:
        lab.store.empty()
        lab.seed(name)
    nothing = labs[0].store.schema()
    seen: set[tuple[int, bool]] = set()

    def look(lab: Lab, where: str, ran: Ran) -> None:
        there = lab.store.schema()
        assert there in (nothing, whole), f"{name}, {where}: half of it is there"
        if (id(lab), there == whole) in seen:
            return
        seen.add((id(lab), there == whole))
        lab.go_on(name, "again")
        assert lab.store.schema() == whole, f"{name}, {where}, and again: it is not what it is without a crash"
        assert lab.store.look().like() == rows.like()

    points = kill_at_each_point(labs, name, shared, look, _each(labs, 1 if ALL else 4))
    assert points >= flow.floor, f"{points} points in {name!r}"
    assert {is_whole for _, is_whole in seen} == {False, True}


def _each(labs: list[Lab], step: int | None) -> slice:
    """Every *step*-th point, other ones on the other database; None: none."""
    if step is None:
        return slice(0)
    return slice(1 if isinstance(labs[0].store, SqliteStore) else 1 + step // 2, None, step)
