"""A browser for tests of the pages. It calls the application by WSGI, keeps its cookies, and reads the HTML."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from cronjobs import masking
from cronjobs.contrib.web.application import Application
from cronjobs.contrib.web.project import Current, OwnDatabase
from cronjobs.contrib.web.security import Access, LinkAccess
from cronjobs.engine.config.load import load
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock
from support.lookingrows import NOW, YAML

HOST = "127.0.0.1:8642"
Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: str

    def header(self, name: str) -> str:
        return ", ".join(value for key, value in self.headers if key == name)

    @property
    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="(\w+)"', self.body)
        assert found is not None
        return found[1]

    @property
    def words(self) -> str:
        """Return the text that a person reads."""
        return Reader.read(self.body).words

    @property
    def elements(self) -> list[tuple[str, dict[str, str | None]]]:
        return Reader.read(self.body).elements

    @property
    def tables(self) -> dict[str, list[dict[str, str]]]:
        """Return each table's rows by the table's caption.

        A row maps header words to cells. A <time> is read as its instant.
        """
        return Reader.read(self.body).tables

    def addresses(self) -> list[str]:
        names = ("href", "src", "action")
        return [str(given[name]) for _, given in self.elements for name in names if name in given]


class Reader(HTMLParser):
    """Reads HTML as a browser would: elements with their attributes, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.tables: dict[str, list[dict[str, str]]] = {}
        self._open: list[str] = []

    @classmethod
    def read(cls, html: str) -> Reader:
        reader = cls()
        reader.feed(html)
        reader.close()
        return reader

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        self._open.append(tag)
        if tag == "tr" and "tbody" in self._open:
            list(self.tables.values())[-1].append({})
        elif tag == "td":
            self._cell(str(given["data-label"]), "")
        elif tag == "time":
            self._cell(None, f" {given['datetime']}")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:  # other elements need no end tag
            pass

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._open[-1:] == ["caption"]:
            self.tables[data] = []
        elif "td" in self._open and "time" not in self._open:
            self._cell(None, f" {data}")

    def _cell(self, name: str | None, text: str) -> None:
        """Add to the cell *name*, or to the last one."""
        for row in [rows[-1] for rows in list(self.tables.values())[-1:] if rows]:
            name = name or list(row)[-1]
            row[name] = " ".join(f"{row.get(name, '')} {text}".split())

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.texts).split())


@dataclass
class Browser:
    """*application* may be any WSGI callable. ``script_name`` is the path at which it is mounted."""

    application: Wsgi
    host: str = HOST
    script_name: str = ""
    cookies: dict[str, str] = field(default_factory=dict)
    environ: dict[str, Any] = field(default_factory=dict)

    def get(self, address: str, method: str = "GET", **headers: str) -> Reply:
        return self._ask(method, address, b"", headers)

    def post(self, address: str, fields: dict[str, str] | None = None, **headers: str) -> Reply:
        headers = {"CONTENT_TYPE": "application/x-www-form-urlencoded"} | headers
        return self._ask("POST", address, urlencode(fields or {}).encode(), headers)

    def act(self, page: str, address: str, **fields: str) -> Reply:
        """Do what a person does: open *page*, then send one of its forms."""
        return self.post(address, {"csrf": self.get(page).csrf, **fields})

    def log_in(self, access: LinkAccess) -> Browser:
        assert self.get(f"/?once={access.token}").status == 303
        return self

    def _ask(self, method: str, address: str, body: bytes, headers: dict[str, str]) -> Reply:
        parts = urlsplit(address)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": self.script_name,
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_HOST": self.host,
            "HTTP_COOKIE": "; ".join(f"{name}={value}" for name, value in self.cookies.items()),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(),
        }
        environ |= self.environ
        environ |= {name if name.isupper() else f"HTTP_{name.upper()}": value for name, value in headers.items()}
        started: list[tuple[str, list[tuple[str, str]]]] = []
        answer = b"".join(self.application(environ, lambda status, headers: started.append((status, headers))))
        [(status, given)] = started
        found = Reply(int(status.split()[0]), given, answer.decode())
        errors = environ["wsgi.errors"].getvalue()
        assert errors == "", errors
        for name, value in given:
            if name == "Set-Cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0]
        return found


def pages(database: Database, url: str, folder: Path, access: Access | None = None, yaml: str = YAML) -> Application:
    """The application on a database, with the configuration of ``lookingrows``."""
    file = folder / "cronjobs.yaml"
    file.write_text(yaml.replace("@database@", url))
    settings = load(file, environ={})
    return Application(Current(settings), OwnDatabase(database), access or by_link(), "here")


def by_link(*, may_act: bool = False) -> LinkAccess:
    return LinkAccess("ada", [HOST], "cronjobs_8642", may_act=may_act)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def browser(database: Database, database_url: str, tmp_path: Path) -> Iterator[Browser]:
    """The browser of somebody who may look but not act."""
    yield _logged_in(database, database_url, tmp_path, by_link())
    masking.remember(())


@pytest.fixture(name="browser")
def acting_browser(database: Database, database_url: str, tmp_path: Path) -> Iterator[Browser]:
    yield _logged_in(database, database_url, tmp_path, by_link(may_act=True))
    masking.remember(())


def _logged_in(database: Database, url: str, folder: Path, access: LinkAccess) -> Browser:
    return Browser(pages(database, url, folder, access)).log_in(access)
