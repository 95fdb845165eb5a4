"""Whatever a handler does, the end of its job is recorded, and other jobs are not affected."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.ticking import Project, events

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases

HANDLERS = r"""
import asyncio, ctypes, logging

SOON = RetryPolicy(base="1s", jitter=0)

class Rude(BaseException):
    pass

class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Trap(dict):
    def items(self):
        raise RuntimeError("do not look")

def handler(name, **options):
    def register(function):
        def run(ctx):
            say("ran", ctx)
            return function(ctx)
        run.__module__, run.__qualname__ = __name__, function.__name__ + name
        return job(name, timeout="5s", **options)(run)
    return register

# --- ends

@handler("end.sys_exit", retry=SOON)
def _(ctx): sys.exit(0)

@handler("end.exit_text", retry=SOON)
def _(ctx): sys.exit("over and out")

@handler("end.interrupt", retry=SOON)
def _(ctx): raise KeyboardInterrupt

@handler("end.rude", retry=SOON)
def _(ctx): raise Rude("rude")

@handler("end.generator_exit", retry=SOON)
def _(ctx): raise GeneratorExit

@handler("end.stop_iteration", retry=SOON)
def _(ctx): raise StopIteration

@handler("end.unreadable", retry=SOON)
def _(ctx): raise Unreadable

@handler("end.recursion", retry=SOON)
def _(ctx):
    def deeper(n): return deeper(n + 1)
    deeper(0)

@handler("end.surrogate", retry=SOON)
def _(ctx): raise ValueError("half \ud800 and nul \0 and \x1b[31mred\x1b[0m\nsecond line")

@handler("end.huge_error", retry=SOON)
def _(ctx): raise ValueError("x" * 10_000_000)

@handler("end.group", retry=SOON)
def _(ctx): raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

# --- results

@handler("result.not_json")
def _(ctx): return object()

@handler("result.set")
def _(ctx): return {"a": {1, 2}}

@handler("result.nan")
def _(ctx): return {"a": [1.0, float("nan")]}

@handler("result.nul")
def _(ctx): return {"a": "b\0c"}

@handler("result.surrogate")
def _(ctx): return ["\udfff"]

@handler("result.huge")
def _(ctx): return "x" * 1_000_000

@handler("result.deep")
def _(ctx):
    result = []
    for _ in range(5000): result = [result]
    return result

@handler("result.cycle")
def _(ctx):
    result = {}
    result["me"] = result
    return result

@handler("result.digits")
def _(ctx): return 10 ** 5000

@handler("result.trap")
def _(ctx): return Trap(a=1)

@handler("result.bytes")
def _(ctx): return b"raw"

# --- output

@handler("out.flood")
def _(ctx):
    line = "0123456789" * 100 + "\n"
    for _ in range(50_000): print(line, end="")
    print("the end")

@handler("out.odd")
def _(ctx):
    print("\x1b[31mred\x1b[0m \0 \ud800 \x07")
    print("to stderr", file=sys.stderr)
    logging.getLogger("shop").warning("logged %s", "too")
    sys.stdout.flush()

@handler("out.bytes")
def _(ctx):
    sys.stdout.buffer.write(b"raw \xff bytes\n")
    sys.stdout.buffer.flush()

@handler("out.threads")
def _(ctx):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda n: print("pool", n), range(2)))
    threads = [threading.Thread(target=lambda n=n: logging.getLogger("shop").error("thread %s", n)) for n in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

@handler("out.asks")
def _(ctx):
    sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.fileno()

# --- async and the words for it

@job("async.works", timeout="5s")
async def async_works(ctx):
    say("ran", ctx)
    print("from a coroutine")
    await asyncio.sleep(0.01)
    return {"n": 1}

@job("async.timeout", timeout="0.3s", retry=SOON)
async def async_timeout(ctx):
    say("ran", ctx)
    try:
        await asyncio.sleep(60)
    finally:
        say("cleaned", ctx)

@job("async.raises", timeout="5s", retry=SOON)
async def async_raises(ctx):
    say("ran", ctx)
    raise ValueError("from a coroutine")

@handler("word.give_up")
def _(ctx): raise GiveUp("void")

@handler("word.retry_later")
def _(ctx): raise RetryLater("busy", after="90s")

@handler("word.retry_later_plain", retry=RetryPolicy(base="5m", jitter=0))
def _(ctx): raise RetryLater()

@handler("word.retry_later_nonsense", retry=RetryPolicy(base="5m", jitter=0))
def _(ctx): raise RetryLater("busy", after="soon")

@handler("word.snooze")
def _(ctx): raise Snooze("10m")

@handler("word.snooze_nonsense")
def _(ctx): raise Snooze("when I like")

@job("word.signature", timeout="5s", retry=SOON)
def signature(ctx, invoice_id: int): say("ran", ctx)

# --- threads

@handler("thread.leaked")
def _(ctx): threading.Thread(target=time.sleep, args=(1000,)).start()
"""


def run_all(project: Project, *job_types: str, exit_code: int = 0, yaml: str = "") -> dict[str, int]:
    """Run one tick over a job of each type and a neighbour, which must not be affected."""
    project.configure(yaml or "run: {workers: 4}\n", HANDLERS)
    ids = {job_type: project.add(job_type) for job_type in job_types}
    neighbour_id = project.add("t.quick", priority=9)
    tick = project.tick()
    assert tick.wait() == exit_code
    assert "Traceback" not in tick.stderr
    assert project.outcomes(neighbour_id) == ["succeeded"]
    return ids


def run_of(project: Project, job_id: int) -> dict[str, Any]:
    names = "outcome, error_type, error, traceback, output"
    [row] = project.sql(f"SELECT {names} FROM cronjobs_job_runs WHERE job_id = {job_id}")
    return dict(zip(names.split(", "), row, strict=True))


def waits_s(project: Project, job_id: int) -> float:
    """From the end of its attempt to its next."""
    gap = "(j.run_at - r.finished_at) / 1e6" if project.is_sqlite else "extract(epoch FROM j.run_at - r.finished_at)"
    found = project.value(
        f"SELECT {gap} FROM cronjobs_jobs j JOIN cronjobs_job_runs r ON r.job_id = j.id WHERE j.id = {job_id}"
    )
    return float(found)


def test_whatever_a_handler_raises_is_a_failed_attempt_and_the_pool_survives(project: Project) -> None:
    ends = {
        "end.sys_exit": ("SystemExit", "0 (an exit fails the attempt, even with code 0: to end a handler, return)"),
        "end.exit_text": ("SystemExit", "over and out"),
        "end.interrupt": ("KeyboardInterrupt", "KeyboardInterrupt"),
        "end.rude": ("handlers.Rude", "rude"),
        "end.generator_exit": ("GeneratorExit", "GeneratorExit"),
        "end.stop_iteration": ("StopIteration", "StopIteration"),
        "end.unreadable": ("handlers.Unreadable", "could not be read"),
        "end.recursion": ("RecursionError", "maximum recursion depth"),
        "end.surrogate": ("ValueError", "second line"),
        "end.huge_error": ("ValueError", "xxx"),
        "end.group": ("ExceptionGroup", "several"),
    }
    ids = run_all(project, *ends, yaml="run: {workers: 2}\n")
    for job_type, (error_type, error) in ends.items():
        job, run = project.job(ids[job_type]), run_of(project, ids[job_type])
        assert (job["status"], job["failures"], run["outcome"]) == ("failed", 1, "failed"), job_type
        assert run["error_type"] == error_type
        assert error in run["error"]
        assert "\n" not in run["error"]
        assert "\x00" not in run["error"]
        assert len(run["error"]) < 20_000
        if job_type not in ("end.unreadable",):
            assert "handlers.py" in (run["traceback"] or ""), job_type
    assert set(project.times_ran().values()) == {1}


def test_a_result_that_cannot_be_kept_is_noted_and_the_work_is_not_repeated(project: Project) -> None:
    words = {
        "result.not_json": "object",
        "result.set": "set",
        "result.nan": "nan",
        "result.nul": "NUL",
        "result.surrogate": "surrogate",
        "result.huge": "larger than",
        "result.deep": "nested",
        "result.cycle": "nested",
        "result.digits": "1e400",
        "result.trap": "do not look",
        "result.bytes": "bytes",
    }
    ids = run_all(project, *words)
    project.make_due()
    assert project.tick().wait() == 0
    for job_type, word in words.items():
        job = project.job(ids[job_type])
        assert (job["status"], job["attempts"], job["result"]) == ("succeeded", 1, None), job_type
        assert word in run_of(project, ids[job_type])["error"], job_type
        assert project.times_ran()[ids[job_type]] == 1


def test_fifty_megabytes_of_output_are_capped_and_cost_no_memory(sqlite_project: Project) -> None:
    sqlite_project.configure("run: {workers: 1}\n", HANDLERS)
    job_id = sqlite_project.add("out.flood")
    argv = [sys.executable, "-m", "cronjobs", "run-due", "--config", str(sqlite_project.folder / "cronjobs.yaml")]
    peak = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
    )
    tick = sqlite_project.tick(argv=[sys.executable, "-c", peak, *argv])
    assert tick.wait() == 0
    assert int(tick.stdout) < 120 * 1024
    output = run_of(sqlite_project, job_id)["output"]
    assert len(output) < 100_000
    assert output.startswith("0123456789")
    assert output.rstrip().endswith("the end")


def test_odd_output_is_kept_readable_and_stays_out_of_crons_mail(project: Project) -> None:
    ids = run_all(project, "out.odd", "out.bytes", "out.asks", "out.threads")
    threads = run_of(project, ids["out.threads"])["output"]
    assert sorted(threads.splitlines()) == ["ERROR shop: thread 0", "ERROR shop: thread 1", "pool 0", "pool 1"]
    output = run_of(project, ids["out.odd"])["output"]
    assert "red" in output
    assert "to stderr" in output
    assert "logged too" in output
    assert "\x00" not in output
    assert "raw" in run_of(project, ids["out.bytes"])["output"]
    assert project.job(ids["out.bytes"])["status"] == "succeeded"
    assert (project.ticks[-1].stdout, project.ticks[-1].stderr) == ("", "")


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full", "| true"])
def test_a_closed_full_or_broken_stdout_changes_no_result(sqlite_project: Project, redirection: str) -> None:
    sqlite_project.configure("run: {workers: 2}\n", HANDLERS)
    ids = {job_type: sqlite_project.add(job_type) for job_type in ("out.odd", "t.quick", "word.give_up")}
    command = f"{sys.executable} -m cronjobs run-due -v --config {sqlite_project.folder}/cronjobs.yaml {redirection}"
    subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    assert sqlite_project.outcomes(ids["out.odd"]) == ["succeeded"]
    assert sqlite_project.outcomes(ids["t.quick"]) == ["succeeded"]
    assert sqlite_project.job(ids["word.give_up"])["status"] == "dead"
    assert sqlite_project.value("SELECT count(*) FROM cronjobs_ticks WHERE finished_at IS NOT NULL") == 1
    assert sqlite_project.value("PRAGMA integrity_check") == "ok"


def test_a_leaked_thread_does_not_hold_the_process(sqlite_project: Project) -> None:
    ids = run_all(sqlite_project, "thread.leaked")
    assert sqlite_project.ticks[-1].took_s < 5
    assert sqlite_project.outcomes(ids["thread.leaked"]) == ["succeeded"]


def test_coroutines_are_run_timed_out_and_told_like_functions(project: Project) -> None:
    ids = run_all(project, "async.works", "async.timeout", "async.raises")
    works = run_of(project, ids["async.works"])
    assert (works["outcome"], works["output"]) == ("succeeded", "from a coroutine\n")
    assert run_of(project, ids["async.timeout"])["outcome"] == "timed_out"
    # the handler stopped, so the job is free again at once
    assert project.job(ids["async.timeout"])["status"] == "failed"
    assert project.times_ran("cleaned") == {ids["async.timeout"]: 1}
    assert run_of(project, ids["async.raises"])["error_type"] == "ValueError"


def test_give_up_retry_later_and_snooze_mean_what_they_say(project: Project) -> None:
    ids = run_all(
        project,
        "word.give_up",
        "word.retry_later",
        "word.retry_later_plain",
        "word.retry_later_nonsense",
        "word.snooze",
        "word.snooze_nonsense",
        exit_code=1,
    )
    dead = project.job(ids["word.give_up"])
    assert (dead["status"], dead["error_type"], dead["last_error"]) == ("dead", "GiveUp", "void")
    for job_type, wait_s in [
        ("word.retry_later", 90),
        ("word.retry_later_plain", 300),
        ("word.retry_later_nonsense", 300),
    ]:
        job = project.job(ids[job_type])
        assert (job["status"], job["failures"]) == ("failed", 1)
        assert waits_s(project, ids[job_type]) == pytest.approx(wait_s, abs=2)
    snoozed = project.job(ids["word.snooze"])
    assert (snoozed["status"], snoozed["failures"]) == ("queued", 0)
    assert waits_s(project, ids["word.snooze"]) == pytest.approx(600, abs=2)
    assert project.outcomes(ids["word.snooze"]) == ["snoozed"]
    assert project.job(ids["word.snooze_nonsense"])["failures"] == 1


def test_a_payload_of_a_new_shape_waits_at_least_five_minutes_for_the_new_code(project: Project) -> None:
    project.configure("run: {workers: 2}\n", HANDLERS)
    ids = [project.add("word.signature", payload) for payload in ('{"invoice_id": 1, "colour": "red"}', "{}")]
    good_id = project.add("word.signature", '{"invoice_id": 1}')
    assert project.tick().wait() == 0
    for job_id in ids:
        assert (project.job(job_id)["status"], project.job(job_id)["failures"]) == ("failed", 0)
        assert 299 <= waits_s(project, job_id) <= 301
    assert project.times_ran() == {good_id: 1}


def test_rows_that_plain_sql_wrote_badly_die_with_the_reason_while_others_run(project: Project) -> None:
    project.configure("run: {workers: 2}\n", HANDLERS)
    payloads = {
        "[1]": "object",
        '"text"': "object",
        "5": "object",
        "null": "object",
        json.dumps({"a": "x" * 300_000}): "bytes",
        "[" * 40 + "]" * 40: "object",
        '{"a":' * 40 + "1" + "}" * 40: "nested",
        '{"a": ' + "9" * 5000 + "}": "digits",
    }
    if project.is_sqlite:
        payloads |= {"{not json": "not JSON", '{"a": NaN}': "not JSON"}
    ids = {project.add("t.quick", payload): word for payload, word in payloads.items()}
    odd_ids = [project.add("t.quick", timeout_s=number) for number in ("1e300", "86400000")]
    if not project.is_sqlite:
        odd_ids += [project.add("t.quick", timeout_s=number) for number in ("NaN", "Infinity")]
    good_ids = [project.add("t.quick") for _ in range(3)]
    assert project.tick().wait() == 1
    for job_id, word in ids.items():
        job = project.job(job_id)
        assert (job["status"], job["attempts"]) == ("dead", 1), word
        assert word in job["last_error"]
    for job_id in odd_ids:
        assert project.job(job_id)["status"] == "dead"
        assert "longest timeout, 30 days" in project.job(job_id)["last_error"]
    assert project.times_ran() == dict.fromkeys(good_ids, 1)


def test_an_unknown_job_type_waits_untouched_and_costs_the_others_nothing(project: Project) -> None:
    project.configure("run: {workers: 2}\n", HANDLERS)
    strange = "os:system"
    project.add_many(strange, 3000)
    ids = [project.add("t.quick", priority=6) for _ in range(50)]
    tick = project.tick()
    assert tick.wait() == 3
    assert tick.stderr.count("jobs.unknown_type") == 1
    program = Path(sys.executable).with_name("cronjobs")
    assert f"; look: {program} --config {project.folder / 'cronjobs.yaml'} explain os:system\n" in tick.stderr
    assert project.times_ran() == dict.fromkeys(ids, 1)
    assert tick.took_s < 5
    untouched = "status = 'queued' AND attempts = 0 AND failures = 0 AND last_error IS NULL"
    assert project.value(f"SELECT count(*) FROM cronjobs_jobs WHERE job_type = '{strange}' AND {untouched}") == 3000
    assert "waiting=3000" in events(project.log(), "jobs.unresolved")[0]


def test_a_module_that_cannot_be_imported_stops_only_its_own_types(project: Project) -> None:
    project.configure("run: {workers: 2}\n", imports="[broken, leaves, handlers]")
    (project.folder / "broken.py").write_text("from cronjobs import job\n@job('b.one')\ndef one(): pass\n1 / 0\n")
    (project.folder / "leaves.py").write_text("import sys\nsys.exit(7)\n")
    good_id, waiting_id = project.add("t.quick"), project.add("b.two")
    tick = project.tick()
    assert tick.wait() == 3
    assert "no host knows this job type, so its jobs wait (see the module that could not be loaded)" in tick.stderr
    assert "ZeroDivisionError" in tick.stderr
    assert "Traceback" not in tick.stderr
    assert project.times_ran() == {good_id: 1}
    assert project.job(waiting_id)["attempts"] == 0


@pytest.mark.parametrize("job_type", ["word.give_up", "end.sys_exit"])
def test_max_attempts_of_the_row_decides_when_it_is_dead(sqlite_project: Project, job_type: str) -> None:
    sqlite_project.configure("run: {workers: 1}\n", HANDLERS)
    job_id = sqlite_project.add(job_type, max_attempts=1)
    tick = sqlite_project.tick()
    assert tick.wait() == 1
    assert sqlite_project.job(job_id)["status"] == "dead"
    assert tick.stderr.count("\n") <= 5
    assert f"job {job_id} {job_type}" in tick.stderr
