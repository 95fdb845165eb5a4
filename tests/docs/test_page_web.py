"""docs/how-to/web.md: its examples run, and its tables are complete and right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request
from support.browsing import Browser, Reader
from support.django_project import django_project
from support.django_site import site
from support.pages import ROOT, Page
from support.ticking import Project, cli

from cronjobs import masking
from cronjobs.errors import UsageError

PAGE = Page("docs/how-to/web.md")


@pytest.fixture
def shop(sqlite_project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The page's configuration, in the current folder."""
    block = PAGE.block("yaml", "hide:").replace("sqlite:///cronjobs.db", sqlite_project.url)
    (sqlite_project.folder / "cronjobs.yaml").write_text(block)
    monkeypatch.chdir(sqlite_project.folder)
    monkeypatch.setattr(masking, "_remembered", frozenset())
    sqlite_project.add("shop.pay", '{"invoice": 42, "card": "4111x1111", "more": [{"token": "t0ken"}]}')
    return sqlite_project


def example(shop: Project, says: str) -> dict[str, Any]:
    """The names that a Python block of the page makes."""
    made: dict[str, Any] = {"__name__": "example"}
    exec(PAGE.block("python", says).replace("sqlite:///cronjobs.db", shop.url), made)
    return made


def test_no_block_of_the_page_is_left_out_no_link_is_dead_and_images_are_small() -> None:
    assert PAGE.counts() == {"console": 6, "yaml": 1, "python": 6}
    assert PAGE.dead_links() == []
    images = list((ROOT / "docs/images").glob("web-*.png"))
    assert images
    assert [image.name for image in images if image.stat().st_size > 150_000] == []


def test_the_mounted_app_knows_the_user_and_hides_the_keys(shop: Project) -> None:
    made = example(shop, "# wsgi.py")
    assert Browser(made["application"]).get("/").status == 403
    page = Browser(made["application"], environ={"REMOTE_USER": "ada"}).get("/jobs/1")
    assert page.status == 200
    assert "4111x" not in page.body
    assert "t0ken" not in page.body
    assert '"invoice": 42' in page.words
    assert "Cancel" in page.words
    made["engine"].dispose()


def test_hidden_keys_are_shown_by_no_command(shop: Project) -> None:
    for words in (["jobs", "show", "1"], ["jobs", "show", "1", "--json"], ["jobs", "list", "--json"]):
        said = cli(shop, *words)
        assert "4111x" not in said
        assert "t0ken" not in said
        assert "42" in said


def test_the_report_stands_alone_and_hides_the_keys(shop: Project) -> None:
    file = Path(shop.folder) / "night.html"
    assert f"written: {file}" in cli(shop, "report", "--out", str(file))
    html = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    names = {name for _, given in Reader.read(html).elements for name in given}
    assert {tag for tag, _ in Reader.read(html).elements} & {"script", "link", "img", "a", "form", "iframe"} == set()
    assert names & {"href", "src", "action"} == set()
    assert "url(" not in html
    assert "4111x" not in html
    assert "shop.pay" in html


def test_the_report_goes_to_stdout_or_says_why_it_cannot_be_written(shop: Project) -> None:
    assert cli(shop, "report", "--out", "-").startswith("<!DOCTYPE html>")
    for place in ("/", str(shop.folder), str(shop.folder / "none" / "x.html")):
        assert f"{place} cannot be written: " in cli(shop, "report", "--out", place, code=1)


def test_the_flask_example_with_users_asks_its_session(shop: Project) -> None:
    made = example(shop, "# site.py with users")
    client = made["site"].test_client()
    assert client.get("/admin/jobs/").status_code == 403
    with client.session_transaction() as session:
        session["user"] = "ada"
    assert client.get("/admin/jobs/").status_code == 200


def test_the_flask_example_asks_for_a_password(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_PASSWORD", "right")
    client = example(shop, "# site.py\n")["site"].test_client()
    asked = client.get("/admin/jobs/")
    assert (asked.status_code, asked.headers["WWW-Authenticate"]) == (401, ASKS)
    assert client.get("/admin/jobs/", auth=("ada", "wrong")).status_code == 401
    page = client.get("/admin/jobs/", auth=("ada", "right"))
    assert page.status_code == 200
    assert 'href="/admin/jobs/queues"' in page.text


def test_the_django_example_knows_djangos_users_and_the_admin_takes_none_of_its_addresses(shop: Project) -> None:
    with django_project(shop.url, admin=True):
        patterns = example(shop, "# urls.py")["urlpatterns"]
        with site(patterns, CRONJOBS_CONFIG=shop.folder / "cronjobs.yaml") as made:
            answers = [
                Browser(made, environ={"REMOTE_USER": name}).get("/admin/jobs/jobs/1") for name in ("ada", "bob", "")
            ]
    assert [answer.status for answer in answers] == [200, 403, 302]
    assert "4111x" not in answers[0].body
    assert answers[2].header("Location") == "/admin/login/?next=/admin/jobs/jobs/1"


def test_the_fastapi_example_asks_for_a_password(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_PASSWORD", "right")
    api = example(shop, "# api.py\n")["api"]

    async def ask() -> list[Any]:
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", follow_redirects=True) as client:
            answers = [await client.get("/admin/jobs/jobs/1", auth=("ada", word)) for word in ("right", "wrong")]
            # What a browser does first, with the address as people type it.
            return [*answers, await client.get("/admin/jobs")]

    right, wrong, first = asyncio.run(ask())
    assert right.status_code == 200
    assert 'href="/admin/jobs/queues"' in right.text
    for answer in (wrong, first):
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, ASKS)


def test_the_fastapi_example_with_users_asks_its_session(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSION_SECRET", "change me")
    api = example(shop, "# api.py with users")["api"]

    def login(name: str, request: Request) -> None:
        request.session["user"] = name

    api.get("/login/{name}")(login)

    async def look(name: str | None) -> Any:
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            if name is not None:
                await client.get(f"/login/{name}")
            return await client.get("/admin/jobs/jobs/1")

    ada, bob, nobody = (asyncio.run(look(name)) for name in ("ada", "bob", None))
    assert [answer.status_code for answer in (ada, bob, nobody)] == [200, 200, 403]
    assert "Cancel" in ada.text
    assert "Cancel" not in bob.text


@pytest.mark.parametrize("says", ["# api.py\n", "# site.py\n"])
@pytest.mark.parametrize("given", [None, ""])
def test_without_a_password_the_examples_do_not_start(
    shop: Project, monkeypatch: pytest.MonkeyPatch, says: str, given: str | None
) -> None:
    monkeypatch.delenv("JOBS_PASSWORD", raising=False)
    if given is not None:
        monkeypatch.setenv("JOBS_PASSWORD", given)
    with pytest.raises(UsageError, match="got no password"):
        example(shop, says)


ASKS = 'Basic realm="cronjobs pages"'
