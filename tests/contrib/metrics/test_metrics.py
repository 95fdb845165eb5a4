"""Metrics as scrapers get them, from the textfile and from ``cronjobs metrics``, whatever else is broken."""

from __future__ import annotations

import asyncio
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from support.postgres import READ, as_role
from support.scraped import as_node_exporter_reads, families
from support.ticking import Project, cli, patched

from cronjobs import QueueFull, enqueue, enqueue_async, enqueue_many

YAML = "metrics: {textfile: out/cronjobs.prom}\nschedules:\n  nightly: {cron: '15 2 29 2 *', job: t.quick}\n"
HOSTILE = ('quote"d', "new\nline", "back\\slash", "\x1b[2J", "{} # HELP x", "long" * 75)


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """The samples by name and labels."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in families(text)
        for sample in family.samples
    }


def textfile(project: Project) -> Path:
    return project.folder / "out" / "cronjobs.prom"


@pytest.fixture
def watched(project: Project) -> Project:
    project.configure(YAML)
    (project.folder / "out").mkdir()
    return project


def test_a_tick_that_worked_writes_the_file_whole_and_for_everyone(watched: Project) -> None:
    watched.add("t.quick")
    tick = watched.tick(env={"UMASK": "077"})
    assert (tick.wait(), tick.stdout, tick.stderr) == (0, "", "")
    file = textfile(watched)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    found = samples(file.read_text())
    assert found["cronjobs_attempts_total", ("t.quick", "succeeded")] == 1
    assert found["cronjobs_last_tick_timestamp_seconds", ()] > 0
    assert ("cronjobs_schedule_next_timestamp_seconds", ("nightly",)) in found
    assert "host" not in {label for _, labels in found for label in labels}
    assert list(file.parent.iterdir()) == [file]
    assert as_node_exporter_reads(file.read_text())


def test_idle_ticks_leave_it_until_it_is_due(watched: Project) -> None:
    [watched.tick().wait() for _ in range(2)]
    file = textfile(watched)
    before = file.stat().st_mtime_ns
    assert watched.tick().wait() == 0
    assert file.stat().st_mtime_ns == before
    [state] = (watched.folder / "cronjobs").glob("idle-*")
    for by in ("1", "9999999999"):  # the file is due; or the clock was set back since
        state.write_bytes(re.sub(rb"metrics_by=\d+", b"metrics_by=" + by.encode(), state.read_bytes()))
        assert watched.tick().wait() == 0
        assert file.stat().st_mtime_ns > before
        before = file.stat().st_mtime_ns


def folder(file: Path) -> None:
    file.mkdir()


def no_folder(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


@pytest.mark.either
@pytest.mark.parametrize("breaks", [folder, no_folder])
def test_a_path_that_cannot_be_written_is_mailed_once_and_fails_nothing(watched: Project, breaks: Any) -> None:
    breaks(textfile(watched))
    job_id = watched.add("t.quick")
    first = watched.tick()
    assert first.wait() == 0
    assert "metrics.not_written" in first.stderr
    assert str(textfile(watched)) in first.stderr
    assert watched.job(job_id)["status"] == "succeeded"
    second = watched.tick()
    assert (second.wait(), second.stderr) == (0, "")
    if breaks is folder:
        textfile(watched).rmdir()
    else:
        (watched.folder / "elsewhere").rename(textfile(watched).parent)
    third = watched.tick()
    assert third.wait() == 0
    assert "over" in third.stderr
    assert textfile(watched).is_file()
    assert watched.tick().stderr == ""


FULL_DISK = """
import errno, os
from cronjobs.contrib.metrics import textfile
class Full:
    def __init__(self, file): self.file = file
    def __enter__(self): return self
    def __exit__(self, *_): self.file.close()
    def fileno(self): return self.file.fileno()
    def writelines(self, lines):
        self.file.write(next(iter(lines)))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
textfile.open = lambda *a, **k: Full(open(*a, **k))
"""


@pytest.mark.either
def test_on_a_full_disk_the_old_file_stays_and_nothing_is_left_beside_it(watched: Project) -> None:
    assert watched.tick().wait() == 0
    before = textfile(watched).read_text()
    watched.add("t.quick")
    tick = watched.tick(**patched(watched, FULL_DISK))
    assert tick.wait() == 0
    assert "No space left on device" in tick.stderr
    assert textfile(watched).read_text() == before
    assert list(textfile(watched).parent.iterdir()) == [textfile(watched)]


@pytest.mark.either
def test_a_link_at_its_path_is_replaced_and_not_followed(watched: Project) -> None:
    other = watched.folder / "precious"
    other.write_text("precious")
    textfile(watched).symlink_to(other)
    watched.add("t.quick")
    assert watched.tick().wait() == 0
    assert other.read_text() == "precious"
    assert not textfile(watched).is_symlink()
    assert samples(textfile(watched).read_text())


@pytest.mark.either
@pytest.mark.parametrize(
    "broken",
    ["schedules: 5\n", "schedules:\n  s: {cron: nonsense, job: t.quick}\n", "job_types: [1]\n", "nonsense: 1\n"],
)
def test_the_command_needs_the_database_only(project: Project, broken: str) -> None:
    project.configure()
    project.add("t.quick")
    assert project.tick().wait() == 0
    project.configure(broken)
    found = samples(cli(project, "metrics"))
    assert found["cronjobs_attempts_total", ("t.quick", "succeeded")] == 1


def test_hostile_names_are_labels_and_nothing_else(project: Project) -> None:
    project.configure('limits: {"k\\"x": 3}\n')
    for name in HOSTILE:
        project.add(name, queue=name)
    cli(project, "jobs", "cancel", *(str(n + 1) for n in range(len(HOSTILE))))
    for name in HOSTILE:
        project.add(name, queue=name)
    text = cli(project, "metrics")
    assert text.endswith("# EOF\n")
    assert "\x1b" not in text
    found = samples(text)
    for name in HOSTILE:
        shown = name.replace("\x1b", "\\x1b")
        assert found["cronjobs_jobs_finished_total", (shown, "cancelled")] == 1
        assert found["cronjobs_queue_waiting", (shown,)] == 1
    assert found["cronjobs_limit_capacity", ('k"x', "all")] == 3


@pytest.mark.either
def test_more_job_types_than_have_a_series_are_counted_together(project: Project) -> None:
    project.configure()
    project.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) "
        "INSERT INTO cronjobs_jobs (job_type) SELECT 'kind' || i FROM n"
    )
    cli(project, "jobs", "cancel", *map(str, range(1, 301)))
    for _ in range(2):  # read, and then folded by a tick
        found = samples(cli(project, "metrics"))
        ended = {labels: value for (name, labels), value in found.items() if name == "cronjobs_jobs_finished_total"}
        mine = {job_type: value for (job_type, status), value in ended.items() if status == "cancelled"}
        assert len([name for name in mine if name.startswith("kind")]) == 200
        assert mine["other"] == 100
        project.add("t.quick")
        assert project.tick().wait() == 0


def test_a_role_that_may_only_read_prints_them(postgres_project: Project) -> None:
    postgres_project.configure()
    postgres_project.add("t.quick")
    assert postgres_project.tick().wait() == 0
    reader = Project(postgres_project.folder, as_role(postgres_project.url, READ)).configure()
    assert samples(cli(reader, "metrics"))["cronjobs_attempts_total", ("t.quick", "succeeded")] == 1


async def refuse_async(url: str) -> None:
    engine = create_async_engine(url)
    with pytest.raises(QueueFull):
        await enqueue_async(engine, "t.quick", queue="small", wait=0)
    await engine.dispose()


def test_what_a_full_queue_refused_and_dropped_is_counted(project: Project) -> None:
    project.configure("queues: {small: {max_waiting: 2}, lossy: {max_waiting: 1, on_full: drop}}\n")
    assert project.tick().wait() == 0
    plain = project.url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(plain)
    with pytest.raises(QueueFull):
        enqueue_many(engine, "t.quick", [{}, {}, {}], queue="small")
    enqueue_many(engine, "t.quick", [{}, {}], queue="small")
    with pytest.raises(QueueFull):
        enqueue(engine, "t.quick", queue="small")
    with pytest.raises(QueueFull), engine.begin() as connection:
        enqueue(connection, "t.quick", queue="small")  # its transaction is not ours to write more into
    enqueue_many(engine, "t.quick", [{}, {}, {}], queue="lossy")
    engine.dispose()
    asyncio.run(refuse_async(plain.replace("sqlite://", "sqlite+aiosqlite://")))
    found = samples(cli(project, "metrics"))
    assert found["cronjobs_queue_refused_total", ("small",)] == 3 + 1 + 1
    assert found["cronjobs_queue_dropped_total", ("lossy",)] == 2
    assert found["cronjobs_queue_capacity", ("small",)] == found["cronjobs_queue_waiting", ("small",)] == 2
