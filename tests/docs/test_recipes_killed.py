"""``examples/recipes`` under real ticks, which are killed after a side effect and before its record, and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import until
from support.receivers import MailServer, Provider, WebServer, mail_server, web_server
from support.recipes import FOLDER
from support.ticking import Project

# The file's writer is held at the same place as the others: it is written, and that is not recorded.
HANDLERS = """
import files, invoice_email, payment, webhook

write_whole = files.write_whole

def held(target, data, writer):
    write_whole(target, data, writer)
    say("written", type("ctx", (), {"job_id": 0, "attempt": 0}))
    wait_for("gate")

files.write_whole = held
"""


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def hook() -> Iterator[WebServer]:
    with web_server() as web:
        yield web


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def bank(provider: Provider) -> Iterator[WebServer]:
    with web_server(provider) as web:
        yield web


@pytest.mark.slow
def test_a_runner_killed_after_acting_and_before_recording_repeats_only_what_bears_it(
    project: Project, mail: MailServer, hook: WebServer, bank: WebServer, provider: Provider
) -> None:
    settings = {"SMTP_PORT": str(mail.port), "WEBHOOK_URL": hook.url, "PAYMENT_URL": bank.url, "no_proxy": "*"}
    settings |= {"SMTP_HOST": "127.0.0.1", "EXPORT_FOLDER": str(project.folder)}
    yaml = f"python_path: [{FOLDER}]\nrun: {{workers: 4, lease: 20s}}\nenv: {json.dumps(settings)}\n"
    project.configure(yaml, HANDLERS)
    gates = (mail.gate, hook.gate, bank.gate)
    for gate in gates:
        gate.shut()
    email = project.add("invoices.email", '{"invoice_id": 7, "to": "ada@example.com"}')
    event = project.add("webhooks.deliver", '{"event_id": "evt-1", "event": {"paid": 7}}')
    asked = json.dumps({"payment_id": 9, "cents": 4900, "currency": "eur", "source": "card_1"})
    money = project.add("payments.charge", asked, idempotency_key="charge:9")
    file = project.add("reports.export", '{"day": "2026-03-02"}')

    tick = project.start()
    until(lambda: all(gate.waiting for gate in gates) and project.effects("written"), 30)
    tick.send(signal.SIGKILL)
    assert tick.wait() == -signal.SIGKILL
    states = "SELECT key, state FROM cronjobs_effects ORDER BY key"
    keys = ["charge:9", "invoice-email:7", "report-file:2026-03-02", "webhook:evt-1"]
    assert project.sql(states) == [(key, "begun") for key in keys]
    for gate in gates:
        gate.open()
    project.open()
    assert project.tick().wait() == 1  # exit code 1, because one job is dead

    assert project.sql(states) == list(zip(keys, ["recorded", "stopped", "recorded", "recorded"], strict=True))
    assert {job_id: project.job(job_id)["status"] for job_id in (email, event, money, file)} == {
        email: "dead",
        event: "succeeded",
        money: "succeeded",
        file: "succeeded",
    }
    assert (project.job(email)["error_type"], len(mail.mailbox)) == ("EffectUnknown", 1)
    # the receiver skips the second by this id
    assert [call.headers["Webhook-Id"] for call in hook.calls] == ["evt-1", "evt-1"]
    assert (len(bank.calls), len(provider.charges)) == (2, 1)
    assert len((project.folder / "report-2026-03-02.csv").read_text().splitlines()) == 2000


# Each kill point in a process of its own, forked from one that has everything loaded.
KILLED_WRITERS = """
import os, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import files

target, calls, kill_at = Path(sys.argv[2]), 0, 0


def point(call):
    def counted(*arguments, **options):
        global calls
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), 9)
        return call(*arguments, **options)
    return counted


class Halves:
    "A file that is written in two steps, so that a kill can come between."

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        for half in (data[: len(data) // 2], data[len(data) // 2 :]):
            point(self.file.write)(half)
            self.file.flush()

    def __getattr__(self, name):
        return getattr(self.file, name)


open_file = Path.open
os.fsync, Path.replace, Path.unlink = point(os.fsync), point(Path.replace), point(Path.unlink)
for at in range(1, 100):
    child = os.fork()
    if child == 0:
        Path.open, kill_at = point(lambda path, mode: Halves(open_file(path, mode))), at
        files.write_whole(target, b"new" * 10_000, f"1-{at}")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = target.read_bytes()
    print(os.waitstatus_to_exitcode(status), found[:3].decode(), len(found))
    if status == 0:
        break
    target.write_bytes(b"old")
"""


def test_a_writer_killed_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    target = tmp_path / "report.csv"
    target.write_bytes(b"old")
    command = [sys.executable, "-c", KILLED_WRITERS, str(FOLDER), str(target)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ), timeout=60)
    seen = [line.split() for line in said.stdout.splitlines()]
    assert [code for code, *_ in seen] == ["-9"] * (len(seen) - 1) + ["0"]
    assert len(seen) > 6, "too few kill points"
    assert {tuple(rest) for _, *rest in seen} == {("old", "3"), ("new", "30000")}
    assert [path.name for path in tmp_path.iterdir()] == [
        "report.csv"
    ]  # the last one cleared away what the killed left
