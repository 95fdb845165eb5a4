"""cronjobs drill: it works on both databases and in both forms, it can fail, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.commands import LINUX_ONLY, until
from support.postgres import PostgresServer

from cronjobs.contrib.drill import checks
from cronjobs.contrib.drill.checks import Check, Dead, Form, InterruptedSends, SettledEffects, Stopped, TickEnd, Woken
from cronjobs.contrib.drill.plan import MIX, Mishap, Planned, plan
from cronjobs.contrib.drill.server import ReceivedMail, Try
from cronjobs.contrib.drill.setup import HANDLERS
from cronjobs.engine.probe.kernel_facts import process_started

pytestmark = [
    LINUX_ONLY,
    pytest.mark.slow,
    pytest.mark.xdist_group("drill"),
]  # one worker, so that each drill is run once

NAMES = ["restart", "deadline", "cancel", "frozen", "retries", "dead", "repair", "told", "receipts", "idle", "left"]
WITHIN_S = 600  # a drill takes half a minute; others may need the machine, too

# The command, with handlers of the test's.
WITH_HANDLERS = """
import sys
from pathlib import Path
from cronjobs.desk.cli.main import run
from cronjobs.contrib.drill import setup
setup.HANDLERS = Path(sys.argv.pop(1))
run()
"""

CARELESS = '''

class Forgetful:
    """An effect that no ledger knows of."""

    done, result = False, None

    def __init__(self, receipt):
        self.key = f"receipt:{receipt}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def did_nothing(self):
        pass
'''


@dataclass
class Drill:
    """A running ``cronjobs drill``; its temporary files are in a folder that is empty otherwise."""

    process: subprocess.Popen[str]
    folder: Path
    answer: tuple[str, str] | None = None

    @classmethod
    def start(cls, folder: Path, *words: str, url: str | None = None, argv: tuple[str, ...] = ()) -> Drill:
        (folder / "tmp").mkdir(parents=True)
        command = argv or (sys.executable, "-P", "-m", "cronjobs")
        env = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder / "tmp")}
        process = subprocess.Popen(
            [*command, *words],
            cwd=folder,
            env=env if url is None else env | {"CRONJOBS_DATABASE_URL": url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return cls(process, folder)

    def ended(self) -> tuple[int, str, str]:
        if self.answer is None:
            self.answer = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, *self.answer

    def report(self, code: int = 0) -> Any:
        ended, out, err = self.ended()
        assert (ended, err) == (code, ""), f"{out}\n{err}"
        return json.loads(out)

    def left(self) -> list[str]:
        return sorted(entry.name for entry in (self.folder / "tmp").iterdir())

    def processes(self) -> set[int]:
        """The processes that the drill has started and that still run, without the drill's own."""
        mine, found = os.fsencode(self.folder / "tmp"), set()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mine in (entry / "environ").read_bytes() and process_started(int(entry.name)):
                    found.add(int(entry.name))
            except OSError:
                continue
        return found - {self.process.pid}


@pytest.fixture(scope="module")
def shop_url(_server: PostgresServer, _postgres_template: str) -> Iterator[str]:
    """The database of a user, with a job of their own."""
    _server.execute(f"CREATE DATABASE drilled TEMPLATE {_postgres_template} STRATEGY FILE_COPY")
    url = _server.url("drilled")
    execute(url, "INSERT INTO cronjobs_jobs (job_type) VALUES ('shop.order')")
    yield url
    _server.execute("DROP DATABASE drilled WITH (FORCE)")


@pytest.fixture(scope="module")
def drills(shop_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Drill]]:
    """All drills. They run at the same time, because each mostly waits."""
    base = tmp_path_factory.mktemp("drills")
    careless = HANDLERS.read_text().replace(
        'with ctx.effect(("receipt", receipt), on_unknown="stop") as effect:', "with Forgetful(receipt) as effect:"
    )
    assert "Forgetful" in careless
    (base / "careless.py").write_text(careless + CARELESS)
    few = ("--receipts", "40")
    started = {
        "full": Drill.start(base / "full", "drill", "--json"),
        "kill": Drill.start(base / "kill", "drill", "--form", "kill", "--keep", *few, url=shop_url),
        "careless": Drill.start(
            base / "careless",
            *("drill", "--json", "--form", "kill", *few),
            argv=(sys.executable, "-c", WITH_HANDLERS, str(base / "careless.py")),
        ),
    }
    yield started
    for each in started.values():
        if each.process.poll() is None:
            each.process.terminate()
        each.process.communicate()


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return list(cursor.fetchall()) if cursor.description else []


def schemas(url: str) -> list[str]:
    found = execute(url, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'cronjobs_drill%'")
    return [name for (name,) in found]


def named(form: Mapping[str, Any]) -> dict[str, Any]:
    """The checks of one form by their names. Each check is there once, and their order is right."""
    assert [check["name"] for check in form["checks"]] == NAMES, form
    return {check["name"]: check for check in form["checks"]}


def assert_held(form: Mapping[str, Any], receipts: int) -> None:
    found = named(form)
    assert form["held"], found
    assert all(check["held"] for check in found.values()), found
    figures = found["receipts"]["figures"]
    assert (figures["mails"], figures["distinct"], figures["message_ids"]) == (receipts, receipts, receipts)
    assert (figures["twice"], figures["missing"], figures["succeeded"]) == ([], [], receipts)


# --- real drills ------------------------------------------------------------------------------------------------------


def test_each_of_100_receipts_arrives_once_in_both_forms(drills: dict[str, Drill]) -> None:
    report = drills["full"].report()
    assert report["held"]
    assert [form["form"] for form in report["forms"]] == ["sigterm", "kill"]
    for form in report["forms"]:
        assert_held(form, 100)
        refused = named(form)["dead"]["figures"]
        assert refused["refused"] >= 1
        assert refused["unknown"] >= 2
        assert named(form)["retries"]["figures"]["refused"] >= 5
    sigterm, kill = (named(form)["restart"]["figures"] for form in report["forms"])
    assert (sigterm["code"], sigterm["unrecorded"]) == (143, 0)
    assert (kill["code"], kill["unrecorded"] >= 2) == (-9, True)


def test_a_drill_on_postgresql_leaves_the_users_tables_alone(drills: dict[str, Drill], shop_url: str) -> None:
    assert drills["kill"].ended()[0] == 0
    assert execute(shop_url, "SELECT job_type, status, attempts FROM cronjobs_jobs") == [("shop.order", "queued", 0)]
    tables = "cronjobs_job_runs", "cronjobs_effects", "cronjobs_ticks", "cronjobs_audit"
    assert [execute(shop_url, f"SELECT count(*) FROM {table}") for table in tables] == [[(0,)]] * 4


def test_a_drill_leaves_no_folder_no_schema_and_no_process(drills: dict[str, Drill], shop_url: str) -> None:
    kept = drills["kill"].ended()[1].partition("and the schema ")[2].split()[0]
    for drill in (drills["full"], drills["careless"]):
        drill.ended()
        assert drill.left() == []
        assert drill.processes() == set()
    assert schemas(shop_url) == [kept]


def test_what_was_kept_is_looked_at_with_the_commands_that_it_prints(drills: dict[str, Drill], shop_url: str) -> None:
    code, out, err = drills["kill"].ended()
    assert (code, err) == (0, "")
    assert [line[:4] for line in out.splitlines()].count("  ok") == len(NAMES)
    assert f"All {len(NAMES)} checks passed" in out
    assert shop_url not in out
    assert drills["kill"].processes() == set()
    [look] = [line for line in out.splitlines() if line.strip().startswith("cronjobs jobs list")]
    [drop] = [line.partition("-c ")[2].strip("'") for line in out.splitlines() if "DROP SCHEMA" in line]
    done = subprocess.run(
        [sys.executable, "-P", "-m", *look.split(), "--type", "drill.receipt", "--json"],
        env={"PATH": "/usr/bin:/bin", "DATABASE_URL": shop_url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Counter(job["status"] for job in json.loads(done.stdout)) == {"succeeded": 40}
    execute(shop_url, drop)
    assert schemas(shop_url) == []


def test_a_handler_without_its_effect_fails_the_drill(drills: dict[str, Drill]) -> None:
    report = drills["careless"].report(code=1)
    [form] = report["forms"]
    assert not report["held"]
    assert not form["held"]
    found = named(form)
    assert found["receipts"]["figures"]["twice"]
    assert {name for name, check in found.items() if not check["held"]} >= {"receipts", "dead"}


def test_after_a_ctrl_c_nothing_is_left_and_no_secret_was_to_be_seen(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    drill = Drill.start(tmp_path / "drill", "drill", "--keep", "--form", "kill", url=postgres_url)
    secret = postgres_server.password.encode()
    tmp = drill.folder / "tmp"
    until(lambda: any(tmp.glob("*/tick-2.out")), WITHIN_S)  # tempfile tries the folder first, with a file for a moment
    [made] = tmp.iterdir()
    assert len(schemas(postgres_url)) == 1
    assert drill.processes()
    assert not [pid for pid in [*drill.processes(), drill.process.pid] if secret in read(f"/proc/{pid}/cmdline")]
    assert not [file for file in made.rglob("*") if file.is_file() and secret in read(file)]
    drill.process.send_signal(signal.SIGINT)
    code, out, err = drill.ended()
    assert (code, err) == (130, "")
    assert secret not in out.encode()
    assert drill.left() == []
    assert drill.processes() == set()
    assert schemas(postgres_url) == []


def read(file: str | Path) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:  # the process has ended meanwhile
        return b""


# --- what it needs ----------------------------------------------------------------------------------------------------


def test_a_role_that_may_make_no_schema_is_told_so(
    postgres_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    password = postgres_server.password
    execute(postgres_url, f"DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN PASSWORD '{password}'")
    drill = Drill.start(tmp_path / "drill", "drill", url=postgres_url.replace("//postgres:", "//guest:"))
    code, out, err = drill.ended()
    assert code == 4, err
    assert "which this role may not create in database" in err
    assert "GRANT CREATE ON DATABASE" in err
    assert password not in out + err
    assert drill.left() == []


def test_of_a_server_that_cannot_be_reached_it_says_no_more(tmp_path: Path) -> None:
    drill = Drill.start(tmp_path / "drill", "drill", url="postgresql://a:b@127.0.0.1:9/x")
    code, _, err = drill.ended()
    assert code == 4
    assert "cannot be reached" in err
    assert "DROP SCHEMA" not in err
    assert drill.left() == []


def test_without_a_mail_server_it_says_what_to_install(tmp_path: Path) -> None:
    script = "import sys; sys.modules['aiosmtpd'] = None\nfrom cronjobs.desk.cli.main import run\nrun()"
    drill = Drill.start(tmp_path / "drill", "drill", argv=(sys.executable, "-P", "-c", script))
    code, _, err = drill.ended()
    assert (code, err) == (
        2,
        "the drill runs a real mail server, which is not installed: pip install 'cronjobs[drill]'\n",
    )
    assert drill.left() == []


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_of_100_receipts_20_are_forced_to_fail_some_for_good() -> None:
    planned = plan(100)
    kinds = Counter(meets.trouble for meets in planned.values())
    assert len(planned) == 20
    assert kinds[Mishap.NO_SUCH_ADDRESS] == 6
    assert set(kinds) == set(Mishap)
    assert min(planned) > 30  # what is interrupted first goes well until then
    assert max(planned) <= 100


@pytest.mark.parametrize("receipts", [20, 21, 99, 10_000])
def test_few_receipts_or_many_meet_what_matters(receipts: int) -> None:
    planned = plan(receipts)
    assert len(planned) == receipts // 5
    assert {meets.trouble for meets in planned.values()} >= {meets.trouble for meets in MIX[:4]}
    assert max(planned) <= receipts


# --- each check can fail ----------------------------------------------------------------------------------------------

PLANNED = {
    1: Planned(Mishap.BUSY, 2),
    2: Planned(Mishap.NO_SUCH_ADDRESS),
    3: Planned(Mishap.KEPT_UNANSWERED),
}
TRIES = [
    Try(1, Mishap.BUSY, 0.0),
    Try(2, Mishap.NO_SUCH_ADDRESS, 0.1),
    Try(3, Mishap.KEPT_UNANSWERED, 0.2),
    Try(1, Mishap.BUSY, 1.0),
    Try(1, None, 2.0),
]
DEAD = [Dead(2, "GiveUp", "the mail server said 550: no"), Dead(3, "EffectUnknown", "this effect was begun …")]
MAILS = [ReceivedMail(1, "<1>"), ReceivedMail(2, "<2>"), ReceivedMail(3, "<3>")]
STOPPED = InterruptedSends(143, 1.0, mails=9, waiting=20, leases=0, unrecorded=0)
KILLED = InterruptedSends(-9, 0.1, mails=9, waiting=20, leases=3, unrecorded=2)
WOKEN = Woken(held=4, taken=4, code=-14, changed=0, mails=0)
HUNG = Stopped(3.9, 6, alive=False, status="dead")
CALLED_OFF = Stopped(1.5, 5, alive=False, status="cancelled")
SETTLED = SettledEffects(found=2, not_found=1, retried=4, dead=0)
TOLD = [TickEnd(1, "", "cronjobs: a job is dead: …"), TickEnd(0, "", "")]


def listed(dead: list[Dead] = DEAD, tries: list[Try] = TRIES, lost: int = 0, open_ends: int = 1) -> Check:
    return checks.listed(PLANNED, dead, tries, Counter({2: lost}), open_ends)


HOLDS: dict[str, Check] = {
    "SIGTERM": checks.restarted(Form.SIGTERM, STOPPED, 5),
    "kill -9": checks.restarted(Form.KILL, KILLED, 5),
    "frozen": checks.woken(WOKEN),
    "hung": checks.timed_out(HUNG),
    "cancelled": checks.cancelled(CALLED_OFF, outlived_its_tick=True),
    "retried": checks.retried(PLANNED, TRIES, ()),
    "listed": listed(),
    "asked again, since its runner died": listed(tries=[*TRIES, TRIES[1]], lost=1),
    "repaired": checks.repaired(SETTLED),
    "told": checks.told(TOLD),
    "told, and not again": checks.told([*TOLD, replace(TOLD[0], err="")]),
    "arrived": checks.arrived(3, MAILS, 3),
    "idle": checks.idle(TickEnd(0, "", "")),
    "nothing left": checks.left_behind(()),
}

FAILS: dict[str, Check] = {
    "not mid-run: nothing was out": checks.restarted(Form.SIGTERM, replace(STOPPED, mails=0), 5),
    "not mid-run: nothing waited": checks.restarted(Form.SIGTERM, replace(STOPPED, waiting=0), 5),
    "SIGTERM: another end": checks.restarted(Form.SIGTERM, replace(STOPPED, code=0), 5),
    "SIGTERM: too slow": checks.restarted(Form.SIGTERM, replace(STOPPED, took_s=7.1), 5),
    "SIGTERM: a mail without a record": checks.restarted(Form.SIGTERM, replace(STOPPED, unrecorded=1), 5),
    "SIGTERM: a lease not given back": checks.restarted(Form.SIGTERM, replace(STOPPED, leases=1), 5),
    "kill -9: it met nothing": checks.restarted(Form.KILL, replace(KILLED, unrecorded=0), 5),
    "kill -9: it survived": checks.restarted(Form.KILL, replace(KILLED, code=0), 5),
    "frozen: it held nothing": checks.woken(replace(WOKEN, held=0, taken=0)),
    "frozen: not taken over": checks.woken(replace(WOKEN, taken=3)),
    "frozen: it changed a row": checks.woken(replace(WOKEN, changed=1)),
    "frozen: it sent a mail": checks.woken(replace(WOKEN, mails=1)),
    "hung: too long": checks.timed_out(replace(HUNG, worked_s=6.1)),
    "hung: its process lives": checks.timed_out(replace(HUNG, alive=True)),
    "hung: the row says otherwise": checks.timed_out(replace(HUNG, status="running")),
    "cancelled: too late": checks.cancelled(CALLED_OFF, outlived_its_tick=False),
    "cancelled: it went on": checks.cancelled(replace(CALLED_OFF, worked_s=5.1), outlived_its_tick=True),
    "cancelled: retried": checks.cancelled(replace(CALLED_OFF, status="failed"), outlived_its_tick=True),
    "retried: at once": checks.retried(PLANNED, [*TRIES[:3], Try(1, Mishap.BUSY, 0.5), *TRIES[4:]], ()),
    "retried: never": checks.retried(PLANNED, TRIES[:4], ()),
    "retried: once more": checks.retried(PLANNED, [*TRIES, Try(1, None, 3.0)], ()),
    "retried: none to look at": checks.retried(PLANNED, TRIES, (1,)),
    "listed: one is missing": listed(DEAD[1:]),
    "listed: unknown, and not stopped": listed(DEAD[:1], open_ends=0),
    "listed: a stopped effect without its job": listed(open_ends=2),
    "listed: dead for another reason": listed([*DEAD, Dead(1, "RetryLater", "450")]),
    "listed: the wrong one": listed([*DEAD, Dead(1, "GiveUp", "550")]),
    "listed: retried nevertheless": listed(tries=[*TRIES, TRIES[1]]),
    "repaired: dead again": checks.repaired(replace(SETTLED, dead=1)),
    "repaired: nothing to do": checks.repaired(replace(SETTLED, retried=0)),
    "told: not with the exit code": checks.told([TOLD[0], replace(TOLD[0], code=0)]),
    "told: not in words": checks.told([replace(TOLD[0], err=""), TOLD[0]]),
    "told: chatter": checks.told([*TOLD, TickEnd(0, "x", "")]),
    "told: database trouble": checks.told([*TOLD, TickEnd(4, "", "database …")]),
    "told: no death at all": checks.told(TOLD[1:]),
    "arrived: twice": checks.arrived(3, [*MAILS, MAILS[0]], 3),
    "arrived: under another Message-ID": checks.arrived(3, [*MAILS[:2], ReceivedMail(3, "<2>")], 3),
    "arrived: not all": checks.arrived(3, MAILS[:2], 3),
    "arrived: a job that has not succeeded": checks.arrived(3, MAILS, 2),
    "idle: exit code": checks.idle(TickEnd(1, "", "")),
    "idle: words": checks.idle(TickEnd(0, "", "x")),
    "something left": checks.left_behind({1}),
    "stuck": checks.stuck("the drill waited 60 s in vain to run everything that waits"),
}


@pytest.mark.parametrize("what", HOLDS)
def test_a_check_holds_when_all_is_well(what: str) -> None:
    assert HOLDS[what].held, HOLDS[what].said


@pytest.mark.parametrize("what", FAILS)
def test_a_check_fails_when_one_thing_is_wrong(what: str) -> None:
    assert not FAILS[what].held, FAILS[what].said
