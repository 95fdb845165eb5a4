"""Customers buy, half of them in vain, while ticks are killed: exactly the paid orders are invoiced, each once.

The customers are processes of the app's, so each order is a transaction beside the ticks' own. A tick is killed after a
random time, or just as the mail server has taken a mail: then its record is what is missing.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from typing import Any

from support.ticking import Tick

from cronjobs.clock import SYSTEM, sleep
from engine.outbox.hour import BY_TYPE, finished
from engine.outbox.stage import CRONJOBS, Stage

LANES = 2  # ticks at a time, as of two hosts
POLL_S = 0.003


@dataclass
class Victim:
    """A tick, and when it is killed: at an instant, or when so many mails are out."""

    tick: Tick
    at: float
    mails: int


def kills(stage: Stage, orders: int, least: int, most: int, seed: int, pace_s: float) -> dict[str, Any]:
    """Half of *orders* are for what is sold out. Kill until all have bought, *least* to *most* times; then judge."""
    chance = random.Random(seed)
    began = SYSTEM.monotonic()
    stage.python("buy.py", "0")  # makes the shop's tables
    half = orders // 2
    buyers = [
        stage.begin("buy.py", str(half), f"--every={pace_s}", "--email=happy@example.com"),
        stage.begin("buy.py", str(orders - half), f"--every={pace_s}", "--email=late@example.com", "--item=signed"),
    ]
    killed, ended = harass(stage, buyers, most, chance)
    assert killed >= least, f"only {killed} ticks were killed: {ended} came to their end before"
    told = [buyer.communicate(timeout=60) for buyer in buyers]
    assert all(buyer.returncode == 0 for buyer in buyers), told
    said = Counter(line.rpartition(": ")[2] for out, _ in told for line in out.splitlines())
    by_hand = put_right(stage)
    events = Counter(event["new"] for event in stage.events())
    return {
        "orders": dict(said),
        "violations": judged(stage, said, half),
        "ticks killed": killed,
        "ticks that ended": ended,
        "attempts lost": stage.value("SELECT count(*) FROM cronjobs_job_runs WHERE outcome = 'lost'"),
        "put right by hand": dict(by_hand),
        "mails": len(stage.mails()),
        "events taken": events[True],
        "events come again, and skipped": events[False],
        "took_s": round(SYSTEM.monotonic() - began, 1),
    }


def harass(stage: Stage, buyers: list[subprocess.Popen[str]], most: int, chance: random.Random) -> tuple[int, int]:
    """Keep ticks running, and kill them; how many were, and how many came to their own end before."""
    mails = stage.folder / "mails.jsonl"
    mails.touch()
    killed = ended = 0
    lanes: list[Victim] = []
    while any(buyer.poll() is None for buyer in buyers) and killed < most:
        out = mails.read_bytes().count(b"\n")
        while len(lanes) < LANES:
            now = SYSTEM.monotonic()
            if chance.random() < 0.5:
                lanes.append(Victim(stage.start("--fail-on=never"), now + chance.uniform(0.2, 2.5), 1_000_000_000))
            else:
                lanes.append(Victim(stage.start("--fail-on=never"), now + 20, out + chance.randint(1, 5)))
        for victim in list(lanes):
            if victim.tick.process.poll() is not None:
                code = victim.tick.wait()
                assert code == 0, (code, victim.tick.stderr)
                ended += 1
                lanes.remove(victim)
            elif SYSTEM.monotonic() >= victim.at or out >= victim.mails:
                victim.tick.send(signal.SIGKILL)
                victim.tick.wait()
                killed += 1
                lanes.remove(victim)
        sleep(POLL_S)
    for victim in lanes:
        victim.tick.send(signal.SIGKILL)
        victim.tick.wait()
    killed += len(lanes)
    return killed, ended


def put_right(stage: Stage) -> Counter[str]:
    """What an operator does about the dead, until there are none; how many of each kind there were.

    A mail of which nobody knows is looked up. A job that ten runners died with (``max_losses``) is dead, too: that so
    many were killed was no fault of its own, and somebody has to say so.
    """
    done: Counter[str] = Counter()
    for _ in range(5):
        stage.drain()
        dead = dict(
            stage.sql("SELECT error_type, count(*) FROM cronjobs_jobs WHERE status = 'dead' GROUP BY error_type")
        )
        if not dead.keys() & {"Lost", "EffectUnknown"}:  # anything else is no part of the plan, and judged
            break
        if "Lost" in dead:
            done["lost ten times, retried"] += dead["Lost"]
            stage.python(*CRONJOBS, "jobs", "retry", "--status", "dead", "--error-type", "Lost", "--yes")
        if "EffectUnknown" in dead:
            for line in stage.python("settle.py").splitlines()[:-1]:
                done[f"mail of unknown end, {line.rpartition(': ')[2]}"] += 1
    return done


def judged(stage: Stage, said: Counter[str], half: int) -> list[str]:
    """The faults in what the customers, the folder, the mail server and the receiver have got."""
    wrong: list[str] = []
    paid = stage.orders("PAID")
    if said["PAID"] != half or len(paid) != half:
        wrong.append(f"{said['PAID']} customers were told that they have paid, {len(paid)} orders are: {half} should")
    statuses = {f"{kind} {status}": number for kind, status, number in stage.sql(BY_TYPE)}
    if statuses != finished(half):
        wrong.append(f"jobs: {statuses}")

    made = {file.name: file.read_bytes() for file in (stage.folder / "invoices").iterdir()}
    results = [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in stage.sql(RESULTS)]
    sums = {result["file"]: result["sha256"] for result in results}
    if made.keys() != {f"R{order:06}.pdf" for order in paid}:
        wrong.append(f"invoices: {sorted(made)} for {sorted(paid)}")
    for name, content in made.items():
        whole = content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")
        if not whole or hashlib.sha256(content).hexdigest() != sums.get(name):
            wrong.append(f"{name} is not the invoice that was made")

    for what, copies, wanted in (
        ("mail", Counter(mail["message_id"] for mail in stage.mails()), "<invoice-mail.{}@shop.example>"),
        ("event", Counter(event["id"] for event in stage.events() if event["new"]), "invoice-event:{}"),
    ):
        expected = Counter(wanted.format(order) for order in paid)
        wrong += [
            f"{what} {each}: {copies[each]} times"
            for each in sorted(copies | expected)
            if copies[each] != expected[each]
        ]
    return wrong


DEAD = "SELECT error_type, count(*) FROM cronjobs_jobs WHERE status = 'dead' GROUP BY error_type"
RESULTS = "SELECT result FROM cronjobs_jobs WHERE job_type = 'invoices.issue' AND result IS NOT NULL"
