"""Each part of ``examples/invoices``: the app, the files, the providers' answers, and the README's commands."""

from __future__ import annotations

import os
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine.outbox.stage import EXAMPLE, Stage, new_stage
from support.commands import until
from support.pages import Page

from cronjobs import GiveUp, RetryLater

README = Page("examples/invoices/README.md")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's own modules, from a copy of it."""
    folder = tmp_path / "shop"
    shutil.copytree(EXAMPLE, folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    names = [file.stem for file in folder.glob("*.py")]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    import mail  # type: ignore[import-not-found]
    import pdf  # type: ignore[import-not-found]
    import webhook  # type: ignore[import-not-found]

    yield SimpleNamespace(mail=mail, pdf=pdf, webhook=webhook)
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def order(**fields: Any) -> Any:
    given = {"id": 7, "number": "R000007", "email": "ada@example.com", "item": "book", "cents": 1990}
    return SimpleNamespace(**(given | {"paid_at": datetime(2026, 3, 2, tzinfo=UTC)} | fields))


# --- the app ----------------------------------------------------------------------------------------------------------

CLICKS = """
import asyncio, httpx
from app import app
from buy import open_shop

async def clicks():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        async def post(path, **body):
            return (await client.post(path, json=body)).status_code
        return [
            await post("/orders", email="ada@example.com", item="book"),
            *await asyncio.gather(*(post("/orders/1/pay") for _ in range(5))),
            await post("/orders", email="ada@example.com", item="unicorn"),
            await post("/orders/99/pay"),
            (await client.get("/orders/1")).json()["status"],
        ]

open_shop()
print(*asyncio.run(clicks()))
"""


@pytest.mark.slow
def test_however_often_a_customer_clicks_there_is_one_job(tmp_path: Path, sqlite_migrated: str) -> None:
    stage = new_stage(tmp_path / "shop", f"sqlite:///{sqlite_migrated}")
    stage.env = {"DATABASE_URL": stage.url}
    said = stage.python("-c", CLICKS)
    assert said.split() == ["201", *["200"] * 5, "404", "404", "PAID"]
    assert stage.sql("SELECT idempotency_key FROM cronjobs_jobs") == [("invoice:1",)]
    assert stage.sql("SELECT stock FROM items WHERE name = 'book'") == [(999_999,)]


# --- the invoice ------------------------------------------------------------------------------------------------------


def test_an_invoice_is_whole_or_not_there_and_the_same_when_it_is_made_again(
    modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(os, "fsync", crash)
        modules.pdf.write(order())
    assert list(modules.pdf.FOLDER.glob("*.pdf")) == []

    first = modules.pdf.write(order())
    [file] = modules.pdf.FOLDER.iterdir()
    assert (first["file"], file.name) == ("R000007.pdf", "R000007.pdf")
    content = file.read_bytes()
    assert (content[:5], content.rstrip()[-5:]) == (b"%PDF-", b"%%EOF")
    assert modules.pdf.write(order()) == first
    assert file.read_bytes() == content


# --- the mail ---------------------------------------------------------------------------------------------------------


class Post(socketserver.StreamRequestHandler):
    """A mail server that gives ``answers`` to some commands; to one it hangs up."""

    answers: dict[str, str]
    mails: list[bytes]

    def handle(self) -> None:
        self.say("220 here")
        while line := self.rfile.readline():
            command = line[:4].decode().upper()
            answer = self.answers.get(command, {"DATA": "354 go on", "QUIT": "221 bye"}.get(command, "250 ok"))
            self.say(answer)
            if answer.startswith("354"):
                self.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")))
                if self.answers.get("end") == "hang up":
                    return
                self.say(self.answers.get("end", "250 taken"))

    def say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


class Ctx:
    """What ``mail.send`` uses of a context; ``ended`` says how the effect did."""

    remaining_s = 10.0

    def __init__(self) -> None:
        self.ended = "not begun"

    @contextmanager
    def effect(self, key: str, on_unknown: str) -> Iterator[Any]:
        assert (key, on_unknown) == ("invoice-mail:7", "stop")
        self.ended = "unknown"
        effect = SimpleNamespace(done=False, result=None, did_nothing=lambda: setattr(self, "ended", "did nothing"))
        yield effect
        self.ended = "recorded"


@contextmanager
def mail_server(modules: Any, answers: dict[str, str]) -> Iterator[list[bytes]]:
    handler = type("Handler", (Post,), {"answers": answers, "mails": []})
    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)) as port:
        modules.mail.PORT = port
        yield handler.mails  # type: ignore[attr-defined]


@contextmanager
def serving(server: Any) -> Iterator[int]:
    server.daemon_threads = True
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("answers", "raised", "ended"),
    [
        ({"EHLO": "421 not now", "HELO": "421 not now"}, RetryLater, "not begun"),
        ({"MAIL": "451 not now"}, RetryLater, "not begun"),
        ({"RCPT": "450 try again later"}, RetryLater, "not begun"),
        ({"RCPT": "550 no such mailbox"}, GiveUp, "not begun"),
        ({"DATA": "451 no room"}, RetryLater, "did nothing"),
        ({"end": "452 no room for that"}, RetryLater, "did nothing"),
        ({"end": "554 we do not like it"}, GiveUp, "did nothing"),
        ({"end": "hang up"}, RetryLater, "unknown"),
    ],
)
def test_only_a_message_without_an_answer_leaves_the_mail_unknown(
    modules: Any, answers: dict[str, str], raised: type[Exception], ended: str
) -> None:
    modules.pdf.write(order())
    ctx = Ctx()
    with mail_server(modules, answers), pytest.raises(raised):
        modules.mail.send(ctx, order())
    assert ctx.ended == ended


def test_a_mail_goes_out_with_its_invoice_and_an_id_from_its_key(modules: Any) -> None:
    modules.pdf.write(order())
    ctx = Ctx()
    with mail_server(modules, {}) as mails:
        result = modules.mail.send(ctx, order())
    assert result == {"answer": "taken", "message_id": "<invoice-mail.7@shop.example>"}
    assert ctx.ended == "recorded"
    [mail] = mails
    assert b"Message-ID: <invoice-mail.7@shop.example>\r\n" in mail
    assert b'filename="R000007.pdf"' in mail
    assert re.search(rb"[^\r]\n", mail) is None  # SMTP's lines end in CRLF


@pytest.mark.parametrize("address", ["ada", "a@b@c", "ä@example.com", "a@example.com\r\nRCPT TO:<b@example.com>"])
def test_what_is_no_address_is_given_up_before_anybody_is_asked(modules: Any, address: str) -> None:
    with pytest.raises(GiveUp, match="is not an address"):
        modules.mail.send(Ctx(), order(email=address))


def test_no_mail_server_at_all_is_a_reason_to_wait(modules: Any) -> None:
    modules.pdf.write(order())
    modules.mail.PORT, ctx = free_port(), Ctx()
    with pytest.raises(RetryLater, match="refused"):
        modules.mail.send(ctx, order())
    assert ctx.ended == "not begun"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# --- the event --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "headers", "raised", "after"),
    [
        (429, {"Retry-After": "90"}, RetryLater, "90s"),
        (503, {"Retry-After": "86400"}, RetryLater, "3600s"),
        (503, {"Retry-After": "Fri, 20 Nov 2026 08:00:00 GMT"}, RetryLater, None),
        (500, {}, RetryLater, None),
        (400, {}, GiveUp, None),
        (410, {}, GiveUp, None),
    ],
)
def test_a_receiver_says_whether_and_when_an_event_is_sent_again(
    modules: Any, code: int, headers: dict[str, str], raised: type[Exception], after: str | None
) -> None:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"why")

        def log_message(self, *_: object) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Receiver)) as port:
        modules.webhook.URL = f"http://127.0.0.1:{port}/events"
        with pytest.raises(raised, match=f"{code}: why") as told:
            modules.webhook.post("invoice-event:7", {}, 10)
    assert getattr(told.value, "after", None) == after


def test_an_event_that_comes_again_is_skipped_by_its_id(tmp_path: Path, modules: Any) -> None:
    stage = Stage(tmp_path / "shop", f"sqlite:///{tmp_path / 'shop.db'}")  # the modules' own copy
    with stage.providers():
        modules.webhook.URL = stage.env["WEBHOOK_URL"]
        said = [modules.webhook.post("invoice-event:7", {"order": 7}, 10)["answer"] for _ in range(2)]
    assert said == ["200 taken", "200 had it already"]
    assert [event["new"] for event in stage.events()] == [True, False]


def test_an_event_whose_sender_is_killed_in_the_middle_is_new_when_it_comes_again(tmp_path: Path, modules: Any) -> None:
    stage = Stage(tmp_path / "shop", f"sqlite:///{tmp_path / 'shop.db'}")
    with stage.providers():
        port = int(stage.env["WEBHOOK_URL"].partition("127.0.0.1:")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as sender:
            sender.sendall(b"POST /events HTTP/1.1\r\nX-Event-Id: invoice-event:7\r\nContent-Length: 12\r\n\r\n{")
            sender.shutdown(socket.SHUT_WR)
            assert sender.recv(1) == b""  # the server has closed the connection
        modules.webhook.URL = stage.env["WEBHOOK_URL"]
        assert modules.webhook.post("invoice-event:7", {"order": 7}, 10)["answer"] == "200 taken"
    assert [event["new"] for event in stage.events()] == [True]


# --- the README -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_commands_of_the_readme_print_what_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "invoices"
    shutil.copytree(EXAMPLE, folder)
    smtp, events = free_port(), free_port()
    env = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "SMTP_PORT": str(smtp),
        "WEBHOOK_PORT": str(events),
        "WEBHOOK_URL": f"http://127.0.0.1:{events}/events",
    }
    blocks = "".join(block.text for block in README.blocks("console"))
    steps = [step.partition("\n") for step in re.split(r"^\$ ", blocks, flags=re.MULTILINE) if step]
    background: list[subprocess.Popen[bytes]] = []
    (folder / "providers.log").touch()
    try:
        for command, _, expected in steps:
            if command.endswith("&"):
                background.append(
                    subprocess.Popen(f"exec {command.removesuffix('&')}", shell=True, cwd=folder, env=env)
                )
                until(lambda: "events on port" in (folder / "providers.log").read_text(), within_s=30)
                continue
            done = subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True)
            assert done.returncode == ("is dead" in expected), (command, done.stdout, done.stderr)
            wanted, printed = lines(expected), lines(done.stdout + done.stderr)
            some = "…" in wanted  # stands for more lines
            assert wanted - {"…"} <= printed if some else wanted == printed, (command, done.stdout, done.stderr)
    finally:
        for process in background:
            process.kill()
            process.wait()


def lines(output: str) -> set[str]:
    """Workers finish in any order; numbers, times and places are different each time."""
    return {re.sub(r"\d[\d,.]*(m?s\b)?", "0", re.sub(r"(?<!\w)/\S*/", "/there/", line)) for line in output.splitlines()}


def test_the_readme_shows_the_code_as_it_is_and_its_links_lead_somewhere() -> None:
    assert README.counts() == {"python": 2, "console": 6, "sh": 1}
    assert README.dead_links() == []
    shown = README.block("python", "def pay(")
    code = (EXAMPLE / "shop.py").read_text()
    assert [line for line in shown.splitlines() if line.strip() not in ("", "...") and line.strip() not in code] == []
    for block in README.blocks("python"):
        compile(block.text, README.path, "exec")


def test_the_delays_are_those_that_the_readme_names(modules: Any) -> None:
    import jobs  # type: ignore[import-not-found]

    from cronjobs.engine.jobs.registry import _registered

    names = [name for name in _registered if name.startswith("invoices.")]
    try:
        assert names == ["invoices.issue", "invoices.mail", "invoices.notify"]
        delays = [delay.total_seconds() for delay in jobs.PATIENT.delays]
        assert delays == [5, 15, 45, 120, 600, 1800]
        patience_s = sum(delays) + 1800 * (jobs.PATIENT.max_attempts - 1 - len(delays))
        assert 24 <= patience_s / 3600 <= 26  # "for a day"
    finally:
        for name in names:
            del _registered[name]
