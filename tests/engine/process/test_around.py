"""``around:`` in the file: entered and left around every attempt, wherever the attempt runs and however it ends."""

from __future__ import annotations

import pytest
from support.ticking import Project

HOOKS = """
import os
from contextlib import contextmanager
from pathlib import Path

NOTES = Path(__file__).parent / "notes"


def note(text):
    with NOTES.open("a") as file:
        file.write(text + "\\n")


@contextmanager
def watch(ctx):
    note(f"in {ctx.job_type} {ctx.job_id} {ctx.attempt} {ctx.meta.get('tenant')}")
    try:
        yield
    except BaseException as error:
        note(f"out {ctx.job_type} {type(error).__name__}: {error}")
        raise
    note(f"out {ctx.job_type}")


@contextmanager
def inner(ctx):
    note("inner")
    yield
    note("outer next")


def not_entered(ctx):
    raise SystemExit("I do not feel like it")


@contextmanager
def breaks(ctx):
    try:
        yield
    finally:
        raise KeyboardInterrupt("broken")


class swallows:
    def __init__(self, ctx): pass
    def __enter__(self): return self
    def __exit__(self, *_): return True
"""
HANDLERS = """
@job("t.fails", retry=RetryPolicy(max_attempts=1))
def fails(): raise ValueError("no such invoice")

@job("t.apart", isolation="process")
def apart(n=0):
    import hooks
    hooks.note("apart")
    return n

@job("t.async")
async def waits(ctx):
    import asyncio, hooks
    await asyncio.sleep(0)
    hooks.note("async")
    return 5

@job("t.works")
def works(): return 7
"""
COMMANDS = "job_types:\n  t.command: {command: [sh, -c, 'echo said; exit 3'], retry: {max_attempts: 1}}\n"


def set_up(project: Project, around: str, more: str = "") -> Project:
    project.configure(f"around: {around}\n{more}", HANDLERS)
    (project.folder / "hooks.py").write_text(HOOKS)
    return project


def notes(project: Project) -> list[str]:
    file = project.folder / "notes"
    return file.read_text().splitlines() if file.exists() else []


def test_it_is_around_handlers_in_threads_and_processes_and_around_commands(project: Project) -> None:
    set_up(project, "[hooks:watch, hooks:inner]", COMMANDS)
    for name, lines, status in (
        ("t.works", ["inner", "outer next", "out t.works"], "succeeded"),
        ("t.async", ["inner", "async", "outer next", "out t.async"], "succeeded"),
        ("t.apart", ["inner", "apart", "outer next", "out t.apart"], "succeeded"),
        ("t.fails", ["inner", "out t.fails ValueError: no such invoice"], "dead"),
        ("t.command", ["inner", "out t.command CommandFailed: exit status 3: said"], "dead"),
    ):
        (project.folder / "notes").unlink(missing_ok=True)
        job_id = project.add(name, meta='{"tenant": "acme"}')
        project.tick()
        job = project.job(job_id)
        assert job["status"] == status, (job, project.log())
        first, *rest = notes(project)
        assert first == f"in {name} {job_id} 1 acme"
        assert rest == lines


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("not_entered", "around hooks:not_entered raised SystemExit before the attempt: I do not feel like it"),
        ("breaks", "around hooks:breaks raised KeyboardInterrupt after the attempt: broken"),
        ("swallows", None),
    ],
)
def test_what_it_raises_changes_no_outcome_and_is_in_the_output(project: Project, hook: str, said: str | None) -> None:
    set_up(project, f"[hooks:watch, hooks:{hook}]", COMMANDS)
    wanted = {"t.works": "succeeded", "t.apart": "succeeded", "t.fails": "dead", "t.command": "dead"}
    jobs = {name: project.add(name) for name in wanted}
    project.tick()
    for name, job_id in jobs.items():
        job = project.job(job_id)
        assert job["status"] == wanted[name], job
        output = project.value(f"SELECT output FROM cronjobs_job_runs WHERE job_id = {job_id}")
        assert "around hooks:" not in (output or "") if said is None else said in output
        if name == "t.fails":
            assert (job["error_type"], job["last_error"]) == ("ValueError", "no such invoice")
        if name == "t.command":
            assert job["error_type"] == "exit-3"
            assert "said" in output
    assert len([line for line in notes(project) if line.startswith("in ")]) == len(wanted)
    assert len([line for line in notes(project) if line.startswith("out ")]) == len(wanted)


@pytest.mark.parametrize("name", ["hooks:missing", "missing:watch"])
def test_one_that_is_not_there_is_a_fault_and_jobs_run_without_it(project: Project, name: str) -> None:
    set_up(project, f"[hooks:watch, {name}]")
    job_id = project.add("t.works")
    tick = project.tick()
    assert tick.wait() == 3
    assert f"around {name}" in tick.stderr
    assert project.job(job_id)["status"] == "succeeded"
    assert notes(project)[-1] == "out t.works"


def test_a_name_that_cannot_be_one_is_shown_with_its_place(project: Project) -> None:
    set_up(project, "[hooks.watch]")
    tick = project.tick()
    assert tick.wait() == 3
    assert "around[0]" in tick.stderr
    assert "billing.tracing:span" in tick.stderr
