"""The pages inside a user's app: at any path, with the app's own users and connections."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import flask
import pytest
from sqlalchemy import Engine, create_engine, select
from support.browsing import Browser
from support.lookingrows import YAML, Rows, ago
from support.lookingrows import rows as rows

from cronjobs import masking
from cronjobs.contrib.web import app, basic_auth, flask_blueprint
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.errors import UsageError
from cronjobs.testing import FakeClock

PAGES = ["/", "/jobs", "/jobs/1", "/schedule?name=nightly-report", "/queues", "/hosts", "/static/style.css"]
MOUNTS = ["", "/a/b", "/caf\xc3\xa9"]  # as WSGI has bytes


def viewer(environ: Mapping[str, Any]) -> str | None:
    return environ.get("REMOTE_USER")


def may_act(environ: Mapping[str, Any]) -> bool:
    return environ.get("REMOTE_USER") == "root"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()  # the app's own connections know no other


@pytest.fixture
def config(rows: Rows, database_url: str, tmp_path: Path) -> Iterator[Path]:
    assert rows.job(status="dead") == 1
    rows.occurrence(rows.schedule("nightly-report"), ago(hours=1), job_id=1)
    file = tmp_path / "cronjobs.yaml"
    file.write_text(YAML.replace("@database@", database_url))
    yield file
    masking.remember(())


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


def statuses(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(select(tables.jobs.c.status)).scalars())


@pytest.mark.parametrize("mount", MOUNTS)
def test_every_link_form_cookie_and_redirect_is_below_the_mount(
    config: Path, engine: Engine, database: Database, mount: str
) -> None:
    pages = app(engine.connect, viewer=viewer, may_act=may_act, config=config)
    browser = Browser(pages, script_name=mount, environ={"REMOTE_USER": "root"})
    base = mount.replace("\xc3\xa9", "%C3%A9")
    for address in PAGES:
        reply = browser.get(address)
        assert reply.status == 200
        assert all(found.startswith((f"{base}/", "#")) for found in reply.addresses())
    first = Browser(pages, script_name=mount, environ={"REMOTE_USER": "root"}).get("/jobs/1")
    attributes = first.header("Set-Cookie").split("; ")[1:]
    assert set(attributes) == {"HttpOnly", "SameSite=Strict", f"Path={base or '/'}"}
    done = browser.act("/jobs/1", "/jobs/1/retry")
    assert (done.status, done.header("Location")) == (303, f"{base}/jobs/1?said=retried")
    assert statuses(database) == ["queued"]
    with database.read() as connection:
        assert connection.execute(select(tables.audit.c.actor)).scalar() == "root"


def test_a_job_is_released_through_the_connection_of_the_app(
    config: Path, engine: Engine, database: Database, rows: Rows
) -> None:
    gone = rows.job(status="running", locked_by=str(replace(Identity.here(), started="1", tick="before")))
    pages = app(engine.connect, viewer=viewer, may_act=may_act, config=config)
    browser = Browser(pages, environ={"REMOTE_USER": "root"})
    assert browser.act(f"/jobs/{gone}", f"/jobs/{gone}/release").header("Location") == f"/jobs/{gone}?said=released"
    assert statuses(database) == ["dead", "queued"]


def test_without_a_viewer_nobody_sees_anything_and_a_sentence_says_why(config: Path, engine: Engine) -> None:
    for pages in (app(engine.connect, config=config), app(config="/nowhere/cronjobs.yaml")):
        for address in [*PAGES, "/nothing"]:
            for method in ("GET", "HEAD", "PUT"):
                assert Browser(pages).get(address, method).status == 403
            assert "pass viewer=" in Browser(pages).get(address).words
        assert Browser(pages).post("/jobs/1/retry").status == 403


def test_who_is_nobody_sees_nothing_and_who_may_only_look_cannot_act(
    config: Path, engine: Engine, database: Database
) -> None:
    pages = app(engine.connect, viewer=viewer, may_act=may_act, config=config)
    assert {Browser(pages).get(address).status for address in PAGES} == {403}
    ada = Browser(pages, environ={"REMOTE_USER": "ada"})
    assert ada.act("/jobs/1", "/jobs/1/retry").status == 403
    assert "Retry" not in ada.get("/jobs/1").words
    looks_only = Browser(app(engine.connect, viewer=viewer, config=config), environ={"REMOTE_USER": "root"})
    assert looks_only.act("/jobs/1", "/jobs/1/retry").status == 403
    assert statuses(database) == ["dead"]


def test_a_form_of_another_user_or_session_does_nothing(config: Path, engine: Engine, database: Database) -> None:
    pages = app(engine.connect, viewer=viewer, may_act=lambda _: True, config=config)
    root, ada = (Browser(pages, environ={"REMOTE_USER": name}) for name in ("root", "ada"))
    csrf = root.get("/jobs/1").csrf
    ada.get("/")
    assert ada.post("/jobs/1/retry", {"csrf": csrf}).status == 403
    ada.cookies |= root.cookies
    assert ada.post("/jobs/1/retry", {"csrf": csrf}).status == 403
    root.cookies.clear()
    assert root.post("/jobs/1/retry", {"csrf": csrf}).status == 403
    assert statuses(database) == ["dead"]


def test_it_opens_the_configured_database_by_itself(config: Path, database: Database) -> None:
    with closing(app(viewer=viewer, may_act=may_act, config=config)) as pages:
        browser = Browser(pages, environ={"REMOTE_USER": "root"})
        assert browser.get("/").status == 200
        assert browser.act("/jobs/1", "/jobs/1/retry").status == 303
    assert statuses(database) == ["queued"]


def test_a_configuration_that_is_not_there_is_told_and_tried_again(config: Path, engine: Engine) -> None:
    away = config.rename(config.with_name("away.yaml"))
    browser = Browser(app(engine.connect, viewer=viewer, config=config), environ={"REMOTE_USER": "ada"})
    assert browser.get("/").status == 503
    away.rename(config)
    assert browser.get("/").status == 200


@pytest.mark.parametrize("fault", ["away", "a folder", "not YAML", "an env_file that is away"])
def test_a_file_that_can_no_longer_be_used_is_a_critical_finding_until_it_can(
    config: Path, engine: Engine, rows: Rows, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRONJOBS_HOST", "web1")
    rows.tick("web1", began=datetime.now(UTC))
    secrets = config.with_name("secrets.env")
    secrets.write_text("TOKEN=abcdefghijklmnop\n")
    good = f"env_file: {secrets.name}\n{config.read_text()}"
    config.write_text(good)
    pages = app(engine.connect, viewer=viewer, may_act=may_act, config=config)
    browser = Browser(pages, environ={"REMOTE_USER": "root"})
    assert "nothing runs with this file" not in browser.get("/").words
    match fault:
        case "away":
            config.unlink()
            said = "there is no such file"
        case "a folder":
            config.unlink()
            config.mkdir()
            said = "the file cannot be read: Is a directory"
        case "not YAML":
            config.write_text("schedules: [\n")
            said = "YAML: "
        case _:
            secrets.unlink()
            said = "cannot be read: No such file"
    shown = browser.get("/").words
    assert said in shown
    assert "nothing runs with this file" in shown
    assert "critical" in shown
    assert browser.get("/jobs/1").status == 200  # the other pages show what the database has
    assert browser.act("/jobs/1", "/jobs/1/retry").status == 303
    if config.is_dir():
        config.rmdir()
    secrets.write_text("TOKEN=abcdefghijklmnop\n")
    config.write_text(good)
    assert "nothing runs with this file" not in browser.get("/").words


def test_a_connection_that_began_a_transaction_is_committed_by_its_owner(
    config: Path, engine: Engine, database: Database
) -> None:
    pages = app(engine.begin, viewer=viewer, may_act=may_act, config=config)
    browser = Browser(pages, environ={"REMOTE_USER": "root"})
    assert browser.act("/jobs/1", "/jobs/1/retry").status == 303
    assert statuses(database) == ["queued"]


def test_a_flask_blueprint_calls_it_inside_the_request(config: Path, engine: Engine, database: Database) -> None:
    site = flask.Flask("shop")
    seen: list[str] = []

    def user(_: Mapping[str, Any]) -> str | None:
        seen.append(flask.request.path)
        return cast("str | None", flask.g.get("user"))

    def log_in() -> None:
        flask.g.user = flask.request.headers.get("X-User")

    site.before_request(log_in)
    blueprint = flask_blueprint(engine.connect, viewer=user, may_act=lambda _: True, config=config)
    site.register_blueprint(blueprint, url_prefix="/admin/jobs")
    browser = Browser(site)
    assert browser.get("/admin/jobs/").status == 403
    for address in PAGES:
        reply = browser.get(f"/admin/jobs{address}", x_user="root")
        assert reply.status == 200
        assert all(found.startswith(("/admin/jobs/", "#")) for found in reply.addresses())
    csrf = browser.get("/admin/jobs/jobs/1", x_user="root").csrf
    done = browser.post("/admin/jobs/jobs/1/retry", {"csrf": csrf}, x_user="root")
    assert (done.status, done.header("Location")) == (303, "/admin/jobs/jobs/1?said=retried")
    assert statuses(database) == ["queued"]
    assert seen[0] == "/admin/jobs/"


@pytest.mark.parametrize("mount", ["//evil.example", "/a//b", "/\\evil.example", "evil", "/a b", "/a\n", "/\xff"])
def test_an_address_that_is_no_path_of_this_server_is_nowhere_to_be_mounted(
    config: Path, engine: Engine, database: Database, mount: str
) -> None:
    """Not in a link, and not where a form leads to."""
    pages = app(engine.connect, viewer=viewer, may_act=may_act, config=config)
    browser = Browser(pages, environ={"REMOTE_USER": "root"})
    csrf = browser.get("/jobs/1").csrf
    browser.script_name = mount
    for reply in (browser.get("/"), browser.post("/jobs/1/retry", {"csrf": csrf})):
        assert (reply.status, reply.header("Location"), reply.addresses()) == (400, "", [])
    assert statuses(database) == ["dead"]


def test_an_address_in_no_spelling_of_wsgis_is_nowhere(config: Path, engine: Engine) -> None:
    pages = app(engine.connect, viewer=viewer, config=config)
    for browser, address in ((Browser(pages), "/\u20ac"), (Browser(pages, script_name="/\u20ac"), "/")):
        assert (browser.get(address).status, browser.post(address).status) == (404, 404)


def test_an_unexpected_error_is_logged_masked_also_where_the_server_has_no_log(
    config: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Mapping[str, Any]) -> str:
        raise LookupError("s3cret-canary")

    browser = Browser(app(engine.connect, viewer=viewer, config=config), environ={"REMOTE_USER": "ada"})
    assert browser.get("/").status == 200
    masking.remember({"s3cret-canary"})
    pages = app(engine.connect, viewer=broken)
    pages._made = browser.application._made  # type: ignore[attr-defined]
    pages._made.access = pages.access
    environ: dict[str, Any] = {"REQUEST_METHOD": "GET", "PATH_INFO": "/"}
    started: list[str] = []
    body = b"".join(pages(environ, lambda status, _: started.append(status)))
    assert started == ["500 INTERNAL SERVER ERROR"]
    assert b"canary" not in body
    written = capsys.readouterr().err
    assert "LookupError: ***" in written
    assert "canary" not in written


def by_basic(sent: str) -> str:
    return f"Basic {b64encode(sent.encode()).decode()}"


@pytest.mark.parametrize(
    "sent",
    [
        *("", "Basic", "Basic ", "Basic ???", "Basic \xe9", "basic", "Bearer right", "Digest username=ada", "\xff\x00"),
        *(by_basic(each) for each in ("", ":", "ada", "ada:", "ada:wrong", "ada:right ", "right", "ada:RIGHT", "é:é")),
        "Basic " + b64encode(b"ada:\xff").decode(),
        by_basic("ada:right").replace("Basic", "Bearer"),
    ],
)
def test_who_does_not_know_the_password_is_asked_for_it(
    config: Path, engine: Engine, database: Database, sent: str
) -> None:
    pages = app(engine.connect, viewer=basic_auth("right"), may_act=lambda _: True, config=config)
    stranger = Browser(pages, environ={"HTTP_AUTHORIZATION": sent} if sent else {})
    for reply in (*(stranger.get(address) for address in PAGES), stranger.post("/jobs/1/retry")):
        assert (reply.status, reply.header("WWW-Authenticate")) == (401, 'Basic realm="cronjobs pages"')
        assert reply.header("Content-Security-Policy").startswith("default-src 'none'")
        assert "nightly" not in reply.body
    assert statuses(database) == ["dead"]


@pytest.mark.parametrize(
    ("name", "recorded"), [("ada", "ada"), ("", "unnamed"), ("a\0\n", "a\\x00\\n"), ("é" * 100, "é" * 79 + "…")]
)
@pytest.mark.parametrize("password", ["right", "a:b", "pässwörd"])
def test_who_knows_the_password_looks_and_acts_under_the_name_they_gave(
    config: Path, engine: Engine, database: Database, password: str, name: str, recorded: str
) -> None:
    pages = app(engine.connect, viewer=basic_auth(password), may_act=lambda _: True, config=config)
    browser = Browser(pages, environ={"HTTP_AUTHORIZATION": by_basic(f"{name}:{password}")})
    assert {browser.get(address).status for address in PAGES} == {200}
    assert browser.act("/jobs/1", "/jobs/1/retry").status == 303
    with database.read() as connection:
        assert connection.execute(select(tables.audit.c.actor)).scalar() == recorded


@pytest.mark.parametrize("password", ["", None])
def test_an_empty_password_is_refused(password: str | None) -> None:
    with pytest.raises(UsageError, match="is the environment variable with the password set"):
        basic_auth(password)


@pytest.mark.parametrize("library", ["werkzeug", "jinja2", "waitress"])
def test_without_the_extra_a_line_says_what_to_install(library: str, tmp_path: Path) -> None:
    needed = "the pages need Werkzeug, Jinja2 and waitress: pip install 'cronjobs[web]'\n"
    commands = [["web"]] if library == "waitress" else [["web"], ["report", "--out", "x.html"]]
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-P", "-c", WITHOUT.format(library), *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout, done.stderr) == (2, "", needed)


WITHOUT = "import sys; sys.modules['{}'] = None\nfrom cronjobs.desk.cli.main import run\nrun()"
