"""docs/how-to/alerts.md: its metrics, its file, and both recipes with the real libraries."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import create_engine
from support.pages import Page
from support.scraped import families
from support.ticking import Project, cli

from cronjobs import enqueue

PAGE = Page("docs/how-to/alerts.md")
HANDLERS = """
@job("shop.pay", retry=RetryPolicy(max_attempts=1))
def pay(ctx): raise ValueError("no such card")

@job("shop.wait")
def wait(ctx): raise Snooze("1h")

@job("shop.ship", isolation="process")
def ship(ctx): pass
"""
# How a program sets OpenTelemetry up: spans go to a file, in place of a collector.
EXPORT = """
import json, os
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

class ToFile(SpanExporter):
    def export(self, spans):
        with open(os.path.join(os.path.dirname(__file__), "spans"), "a") as file:
            for span in spans:
                facts = {"name": span.name, "trace": span.context.trace_id, "attributes": dict(span.attributes)}
                parent = span.parent.span_id if span.parent else None
                file.write(json.dumps(facts | {"status": span.status.status_code.name, "parent": parent}) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
"""


def test_its_table_is_what_is_printed(project: Project) -> None:
    project.configure('limits: {"smtp:": 4}\nqueues: {mail: {max_waiting: 10}}\n')
    assert project.tick().wait() == 0
    printed = {family.name: family for family in families(cli(project, "metrics"))}
    rows = PAGE.table("What there is")
    assert [row["metric"].strip("`") for row in rows] == list(printed)
    assert [row["kind"] for row in rows] == [family.type for family in printed.values()]
    for row in rows:
        labels = {label for sample in printed[row["metric"].strip("`")].samples for label in sample.labels}
        assert labels - {"le"} <= set(re.findall(r"`(\w+)`", row["labels"]))
    [rules] = yaml.safe_load(PAGE.block("yaml", "groups:"))["groups"]
    for rule in rules["rules"]:
        for name in re.findall(r"cronjobs_\w+", rule["expr"]):
            assert name.removesuffix("_total") in printed


class Inbox(BaseHTTPRequestHandler):
    """What Sentry's server would get."""

    events: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for line in body.splitlines():
            facts = json.loads(line) if line.startswith(b"{") else {}
            if "exception" in facts:
                self.events.append(facts)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def inbox() -> Iterator[HTTPServer]:
    Inbox.events = []
    server = HTTPServer(("127.0.0.1", 0), Inbox)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def shop(project: Project, inbox: HTTPServer) -> Project:
    """The page's project."""
    block = PAGE.block("yaml", "around:").replace("/var/lib/node_exporter", str(project.folder))
    project.configure("\n".join(line for line in block.splitlines() if not line.startswith(("database", "imports"))))
    (project.folder / "cronjobs.yaml").write_text(
        (project.folder / "cronjobs.yaml").read_text().replace("[handlers]", "[shop]")
    )
    (project.folder / "handlers.py").rename(project.folder / "shop.py")
    with (project.folder / "shop.py").open("a") as file:
        file.write(HANDLERS)
    (project.folder / "tracing.py").write_text(PAGE.block("python", "# tracing.py") + EXPORT)
    (project.folder / "reporting.py").write_text(PAGE.block("python", "# reporting.py"))
    return project


def spans(project: Project) -> dict[str, Any]:
    lines = (project.folder / "spans").read_text().splitlines()
    return {span["name"]: span for span in map(json.loads, lines)}


@pytest.mark.either
def test_both_recipes_around_every_kind_of_job(shop: Project, inbox: HTTPServer) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    meta = json.dumps({"traceparent": parent})
    ids = {name: shop.add(name, meta=meta) for name in ("shop.pay", "shop.wait", "shop.ship", "shop.tidy")}
    tick = shop.tick(env={"SENTRY_DSN": f"http://key@127.0.0.1:{inbox.server_port}/1"})
    assert tick.wait() == 1
    assert "Sentry" not in tick.stderr
    assert shop.statuses() == {"dead": 2, "queued": 1, "succeeded": 1}
    found = spans(shop)
    for name, job_id in ids.items():
        assert found[name]["trace"] == 0x0AF7651916CD43DD8448EB211C80319C
        assert found[name]["parent"] == 0xB7AD6B7169203331
        assert found[name]["attributes"] == {"cronjobs.job_id": job_id, "cronjobs.attempt": 1}
    assert {name: found[name]["status"] for name in ("shop.pay", "shop.ship", "shop.tidy")} == {
        "shop.pay": "ERROR",
        "shop.ship": "UNSET",
        "shop.tidy": "ERROR",
    }
    told = {event["tags"]["job_type"]: event for event in Inbox.events}
    assert set(told) == {"shop.pay", "shop.tidy"}
    assert told["shop.pay"]["contexts"]["job"]["id"] == ids["shop.pay"]
    assert told["shop.pay"]["exception"]["values"][-1]["value"] == "no such card"
    assert (Path(shop.folder) / "cronjobs.prom").read_text().endswith("# EOF\n")


def test_an_enqueue_within_a_span_keeps_its_trace(shop: Project) -> None:
    sdk: Any = import_module("opentelemetry.sdk.trace")
    tracer = sdk.TracerProvider().get_tracer("web")
    engine = create_engine(shop.url.replace("postgresql://", "postgresql+psycopg://"))
    with tracer.start_as_current_span("POST /orders") as span, engine.begin() as connection:
        one = enqueue(connection, "shop.ship", meta={"tenant": "acme"})
        own = enqueue(connection, "shop.ship", meta={"traceparent": "mine"})
    with engine.begin() as connection:
        outside = enqueue(connection, "shop.ship")
    engine.dispose()
    context = span.get_span_context()
    written = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    found = {
        id_: json.loads(meta) if isinstance(meta, str) else meta
        for id_, meta in shop.sql("SELECT id, meta FROM cronjobs_jobs")
    }
    assert found == {
        one.id: {"tenant": "acme", "traceparent": written},
        own.id: {"traceparent": "mine"},
        outside.id: {},
    }
