"""Handlers in a separate process end as in a thread, and affect nothing outside their process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.isolated import HANDLERS, ran, run_each
from support.ticking import Project

from cronjobs.text import OUTPUT_LIMIT

ENDS = (
    HANDLERS
    + r"""
# --- results

@both("result.dict")
def _(ctx, **payload): return {"n": 1, "text": "grüße \u2028", "list": [1.5, None, True], "payload": payload}

@both("result.list")
def _(): return [1, [2, [3]]]

@both("result.none")
def _(): return None

@both("result.object")
def _(): return object()

@both("result.nan")
def _(): return {"a": float("nan")}

@both("result.surrogate")
def _(): return ["\udfff"]

@both("result.huge")
def _(): return "x" * 1_000_000

@both("result.digits")
def _(): return 10 ** 5000

# --- failures

@both("fail.plain")
def _(ctx):
    def deeper(): raise ValueError("first line\nsecond line")
    deeper()

@both("fail.chained")
def _():
    try: {}["missing"]
    except KeyError as error: raise CardDeclined("no money") from error

@both("fail.group")
def _(): raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

@both("fail.unreadable")
def _(): raise Unreadable

@both("fail.surrogate")
def _(): raise ValueError("half \ud800 and nul \0 and \x1b[31mred\x1b[0m")

@both("fail.recursion")
def _():
    def deeper(n): return deeper(n + 1)
    deeper(0)

@both("fail.rude")
def _(): raise Rude("rude")

@both("fail.sys_exit")
def _(): sys.exit(3)

@both("fail.sys_exit_0")
def _(): sys.exit()

@both("fail.interrupt")
def _(): raise KeyboardInterrupt

@both("fail.signature")
def _(ctx, invoice_id: int): raise AssertionError("never begun")

# --- words

@both("word.give_up")
def _(): raise GiveUp("void")

@both("word.retry_later")
def _(): raise RetryLater("busy", after=timedelta(seconds=90))

@both("word.retry_later_plain")
def _(): raise RetryLater()

@both("word.snooze")
def _(): raise Snooze("10m")

@both("word.give_up_on", retry=RetryPolicy(give_up_on=[CardDeclined]))
def _(): raise StolenCard("reported stolen")

@both("word.not_retry_on", retry=RetryPolicy(retry_on=["TimeoutError"]))
def _(): raise StolenCard("reported stolen")

@both("word.retry_on", retry=RetryPolicy(base="5m", jitter=0, retry_on=["handlers.CardDeclined"]))
def _(): raise StolenCard("reported stolen")

# --- coroutines

@both("async.result")
async def _(ctx):
    print("from a coroutine")
    await asyncio.sleep(0.01)
    return {"n": 1}

@both("async.raises")
async def _(): raise CardDeclined("from a coroutine")
"""
)
PAYLOAD = {"amount": 12.5, "name": "Zoë", "deep": [[{"a": None}]]}


# --- the same as in a thread ------------------------------------------------------------------------------------------


def names_of(handlers: str) -> list[str]:
    return [line.split('"')[1] for line in handlers.splitlines() if line.startswith("@both(")]


@pytest.mark.slow
def test_whatever_a_handler_returns_or_raises_its_process_tells_as_a_thread_would(sqlite_project: Project) -> None:
    project = sqlite_project.configure("run: {workers: 4}\n", ENDS)
    ids = {
        (kind, name): project.add(f"{kind}.{name}", json.dumps(PAYLOAD) if name in ("result.dict",) else "{}")
        for name in names_of(ENDS)
        for kind in ("thread", "process")
    }
    assert project.tick(within_s=60).wait() == 1
    for name in names_of(ENDS):
        expected, found = (ran(project, ids[kind, name]) for kind in ("thread", "process"))
        assert found.pop("waits_s") == pytest.approx(expected.pop("waits_s"), abs=3), name
        for what in ("error", "traceback"):
            found[what] = (found[what] or "").replace("process.", "thread.")
            expected[what] = expected[what] or ""
        assert found == expected, name
    result = ran(project, ids["process", "result.dict"])["result"]
    assert result == {"n": 1, "text": "grüße \u2028", "list": [1.5, None, True], "payload": PAYLOAD}
    failed = ran(project, ids["process", "fail.chained"])
    assert failed["error_type"] == "handlers.CardDeclined"
    assert "KeyError: 'missing'" in failed["traceback"]
    assert 'handlers.py", line' in failed["traceback"]
    assert "cronjobs/" not in failed["traceback"]


OUTPUT = (
    HANDLERS
    + r"""
@both("out.all")
def _(ctx):
    print("to stdout", end=" ")
    print("and stderr", file=sys.stderr)
    logging.getLogger("shop").warning("logged %s", "too")
    ctx.log.info("by the context")
    print("\x1b[31mred\x1b[0m \ud800 \x07 ü")

@both("out.nothing")
def _(): pass

@both("out.bytes")
def _():
    sys.stdout.buffer.write(b"raw \xff bytes\n")
    sys.stdout.buffer.flush()

@apart("process.out.children")
def _():
    subprocess.run(["echo", "from a command"], check=True)
    os.write(1, b"by its descriptor \0\n")

@apart("process.out.flood")
def _():
    line = "0123456789" * 100 + "\n"
    for _ in range(20_000): print(line, end="")
    print("the end")

@apart("process.out.dies")
def _():
    print("not flushed by anybody", end="")
    os.kill(os.getpid(), signal.SIGKILL)

@apart("process.out.stdin")
def _():
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    handed_on = [fd for fd in descriptors if os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(fd)]
    return [sys.stdin.read(), os.read(0, 10).decode(), sorted(handed_on)]

@apart("process.out.atexit")
def _():
    atexit.register(print, "at exit")
    threading.Thread(target=time.sleep, args=(1000,)).start()
"""
)


@pytest.mark.slow
def test_what_a_process_prints_and_logs_is_its_attempts_output(sqlite_project: Project) -> None:
    kinds = ["thread.out.all", "process.out.all", "thread.out.nothing", "process.out.nothing", "process.out.bytes"]
    alone = [f"process.out.{name}" for name in ("children", "flood", "dies", "stdin", "atexit")]
    found = run_each(sqlite_project, OUTPUT, *kinds, *alone)
    assert found["process.out.all"]["output"].splitlines()[:-1] == [
        "to stdout and stderr",
        "WARNING shop: logged too",
        "INFO cronjobs.job.process.out.all: by the context",
    ]
    assert found["process.out.all"]["output"] == found["thread.out.all"]["output"].replace(".thread.", ".process.")
    assert found["process.out.nothing"]["output"] is found["thread.out.nothing"]["output"] is None
    assert found["process.out.bytes"]["output"] == "raw \ufffd bytes\n"
    assert found["process.out.children"]["output"] == "from a command\nby its descriptor \\x00\n"
    flood = found["process.out.flood"]["output"]
    assert flood.startswith("0123456789")
    assert flood.endswith("the end\n")
    assert len(flood) <= OUTPUT_LIMIT
    assert (found["process.out.dies"]["output"], found["process.out.dies"]["error_type"]) == (
        "not flushed by anybody",
        "SIGKILL",
    )
    assert found["process.out.stdin"]["result"] == ["", "", [0, 1, 2]]
    assert found["process.out.atexit"]["output"] == "at exit\n"
    assert sqlite_project.ticks[-1].took_s < 20  # nobody waited for the thread that was left running
    assert (sqlite_project.ticks[-1].stdout, sqlite_project.ticks[-1].stderr) == ("", "")


# --- what it knows ----------------------------------------------------------------------------------------------------

FACTS = (
    HANDLERS
    + r"""
@apart("facts.all")
def _(ctx, **payload):
    import helpers_of_shop
    return {
        "job_id": ctx.job_id, "job_type": ctx.job_type, "attempt": ctx.attempt, "tries": ctx.tries, "meta": ctx.meta,
        "key": ctx.idempotency_key, "stands_for": ctx.stands_for, "payload": payload,
        "scheduled_for": ctx.scheduled_for and ctx.scheduled_for.isoformat(), "cancelled": ctx.cancelled,
        "zone": ctx.scheduled_for and str(ctx.scheduled_for.tzinfo),
        "remaining_s": ctx.remaining_s, "late": ctx.late_by >= timedelta(0), "aware": bool(ctx.enqueued_at.tzinfo),
        "cwd": os.getcwd(), "env": os.environ.get("SHOP"), "where": os.path.dirname(helpers_of_shop.__file__),
        "set_up": helpers_of_shop.set_up, "session": os.getsid(0) == os.getpid(),
        "main_thread": threading.current_thread() is threading.main_thread(),
        "argument": [word for word in open("/proc/self/cmdline").read().split("\0") if "canary" in word],
    }

@apart("facts.effect")
def _(ctx):
    for _ in range(2):
        with ctx.effect("receipt:1") as effect:
            if not effect.done:
                say("ran", ctx)
                effect.result = {"pid": os.getpid() != os.getppid()}
    with ctx.step("second") as step:
        step.result = 2
    return [effect.result, effect.done]
"""
)

FACTS_YAML = """
timezone: Europe/Berlin
python_path: [lib]
setup: helpers_of_shop.prepare
env: {SHOP: open}
run: {workers: 2}
schedules:
  daily: {cron: "15 2 * * *", timezone: America/New_York, job: facts.all}
"""


@pytest.mark.slow
def test_a_process_knows_of_its_job_what_a_thread_knows(project: Project) -> None:
    (project.folder / "lib").mkdir()
    (project.folder / "lib" / "helpers_of_shop.py").write_text(
        "set_up = False\n\ndef prepare():\n    global set_up\n    set_up = True\n"
    )
    project.configure(FACTS_YAML, FACTS)
    assert project.tick().wait() == 0  # the schedule is known from now on
    columns = {"meta": '{"tenant": "7"}', "schedule": "daily", "idempotency_key": "daily:1", "timeout_s": 25}
    at = "1772349300000000" if project.is_sqlite else "2026-03-01T07:15:00Z"
    job_id = project.add("facts.all", '{"a": [1, {"b": "c"}]}', scheduled_for=at, **columns)
    plain_id = project.add("facts.all")
    assert project.tick().wait() == 0
    facts, plain = (ran(project, found)["result"] for found in (job_id, plain_id))
    assert 0 < facts.pop("remaining_s") <= 25
    assert facts == {
        "job_id": job_id,
        "job_type": "facts.all",
        "attempt": 1,
        "tries": 1,
        "meta": {"tenant": "7"},
        "key": "daily:1",
        "stands_for": 1,
        "payload": {"a": [1, {"b": "c"}]},
        "scheduled_for": "2026-03-01T02:15:00-05:00",
        "zone": "America/New_York",
        "cancelled": False,
        "late": True,
        "aware": True,
        "cwd": str(project.folder),
        "env": "open",
        "where": str(project.folder / "lib"),
        "set_up": True,
        "session": True,
        "main_thread": True,
        "argument": [],
    }
    assert (plain["key"], plain["meta"], plain["scheduled_for"]) == (f"cronjobs-job-{plain_id}", {}, None)
    assert 0 < plain["remaining_s"] <= 20


@pytest.mark.slow
def test_effects_and_steps_are_recorded_from_a_process(project: Project) -> None:
    project.configure("run: {workers: 2}\n", FACTS)
    ids = [project.add("facts.effect")]
    assert project.tick().wait() == 0
    ids.append(project.add("facts.effect"))
    assert project.tick().wait() == 0
    assert [ran(project, job_id)["result"] for job_id in ids] == [[{"pid": True}, True]] * 2
    assert project.times_ran() == {ids[0]: 1}
    states = project.sql("SELECT key, job_id, state FROM cronjobs_effects ORDER BY key")
    assert states == [(f"job:{job_id}:step:second", job_id, "recorded") for job_id in ids] + [
        ("receipt:1", ids[0], "recorded")
    ]


# --- the module is another by then ------------------------------------------------------------------------------------

MID_DEPLOY = """
if os.environ.get("SECOND") is None:
    os.environ["SECOND"] = "yes"  # what the child inherits
else:
    {second}

@job("deploy.job", timeout="20s", isolation="process", retry=RetryPolicy(base="1s", jitter=0))
def _(ctx): say("ran", ctx)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("import not_yet_there", "No module named 'not_yet_there'"),
        ("job = lambda name, **options: lambda function: function", "no handler is registered for deploy.job"),
    ],
    ids=["does not import", "has no such handler"],
)
def test_code_that_a_deploy_takes_away_between_claim_and_start_costs_time_and_no_try(
    sqlite_project: Project, second: str, said: str
) -> None:
    project = sqlite_project.configure("run: {workers: 4}\n", MID_DEPLOY.format(second=second))
    job_id = project.add("deploy.job", max_attempts=1)
    before = project.value("SELECT run_at FROM cronjobs_jobs")
    assert project.tick(within_s=60).process.returncode == 0
    job = project.job(job_id)
    assert (job["status"], job["attempts"], job["failures"], job["losses"]) == ("queued", 1, 0, 0)
    assert said in job["last_error"]
    # As for a payload of another shape: the new code is complete by then.
    assert project.value("SELECT run_at FROM cronjobs_jobs") - before >= 299 * 1_000_000
    assert sqlite_project.effects() == []


# --- secrets ----------------------------------------------------------------------------------------------------------

SECRETS = (
    HANDLERS
    + r"""
def shows_url(pid):
    '''Whether anything that ps and top can show of a process, or that it hands on, holds the database's URL.'''
    return "canary-url" in open(f"/proc/{pid}/cmdline").read() + open(f"/proc/{pid}/environ").read()

@apart("secret.tells")
def _():
    print("the token is canary-7391")
    raise ValueError("refused canary-7391")

@apart("secret.looks")
def _():
    tick = int(open(f"/proc/{os.getppid()}/cmdline").read().split("\0")[-2])
    had = {entry.split("=")[0] for entry in open(f"/proc/{tick}/environ").read().split("\0")}
    environment = set(os.environ) - had - {"LC_CTYPE"}
    stdin = os.readlink("/proc/self/fd/0")
    return [[shows_url(pid) for pid in (os.getpid(), os.getppid(), tick)], sorted(environment), stdin]
"""
)


def test_secrets_are_masked_and_stand_in_no_command_line_nor_environment(
    postgres_project: Project, tmp_path: Path
) -> None:
    """The database's URL, password and all, reaches the process through its standard input only."""
    project = postgres_project
    (tmp_path / "token").write_text("canary-7391")
    (tmp_path / "url").write_text(project.url + "?application_name=canary-url")
    project.configure("", SECRETS)
    (project.folder / "cronjobs.yaml").write_text(
        f"database: ${{file:{tmp_path}/url}}\nimports: [handlers]\nrun: {{workers: 2}}\n"
        f"env: {{SHOP: '${{file:{tmp_path}/token}}'}}\n"
    )
    ids = [project.add("secret.tells"), project.add("secret.looks")]
    assert project.tick(fresh=True).wait() == 0  # /proc tells the environment that a process was started with
    tells, looks = (ran(project, job_id) for job_id in ids)
    for what in ("output", "error", "traceback"):
        assert tells[what]
        assert "canary" not in tells[what]
    assert "the token is" in tells["output"]
    # What the tick has of the file's env: it hands on, as to everything that a handler in a thread starts.
    assert looks["result"] == [[False] * 3, ["CRONJOBS_PROCESS", "SHOP"], os.devnull]
