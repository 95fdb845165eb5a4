"""``cronjobs web`` as a process: the link that it prints, idle and slow connections, signals, and refused requests."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from html import unescape
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import pytest
from support.commands import started, until
from support.project import CRONJOBS
from support.ticking import Project, cli

from cronjobs.clock import SYSTEM

IDLE = 30
SOON_S = 20.0  # far below the 30 s that an idle connection may stay


@dataclass
class Served:
    process: subprocess.Popen[str]
    link: str
    address: tuple[str, int]
    cookies: dict[str, str] = field(default_factory=dict)
    location: str = ""  # where the last answer leads to

    def ask(self, method: str, address: str, fields: Any = None, **headers: str) -> tuple[int, str]:
        with closing(http.client.HTTPConnection(*self.address, timeout=60)) as connection:
            body = urlencode(fields or {})
            if method == "POST":
                headers |= {"Content-Type": "application/x-www-form-urlencoded"}
            cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            connection.request(method, address, body if method == "POST" else None, {"Cookie": cookie, **headers})
            answer = connection.getresponse()
            self.location = answer.headers.get("Location", "")
            for value in answer.headers.get_all("Set-Cookie") or ():
                name, _, rest = value.partition("=")
                self.cookies[name] = rest.partition(";")[0]
            return answer.status, answer.read().decode()

    def log_in(self) -> Served:
        parts = urlsplit(self.link)
        assert self.ask("GET", f"/?{parts.query}")[0] == 303
        return self


@contextmanager
def serving(project: Project, *words: str) -> Iterator[Served]:
    command = [*CRONJOBS, "web", "--config", str(project.folder / "cronjobs.yaml"), "--port", "0", *words]
    pipe = subprocess.PIPE
    with started(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()  # flushed before it serves
        link = line.split()[-1]
        parts = urlsplit(link)
        yield Served(process, link, (str(parts.hostname), int(parts.port or 0)))


@pytest.mark.either
def test_the_printed_link_opens_the_pages_and_a_click_on_retry_retries(project: Project) -> None:
    job_id = project.add("shop.nobody")
    cli(project, "jobs", "cancel", str(job_id))
    with serving(project, "--actions") as served:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?once=[\w-]{40,}", served.link)
        assert served.ask("GET", "/")[0] == 401
        assert served.ask("GET", "/", Host="evil.example")[0] == 421
        assert served.ask("GET", "/", Host=f"localhost:{urlsplit(served.link).port}")[0] == 401
        served.log_in()
        status, page = served.ask("GET", f"/jobs/{job_id}")
        assert status == 200
        csrf = re.findall(r'name="csrf" value="(\w+)"', page)[0]
        assert served.ask("POST", f"/jobs/{job_id}/retry", {"csrf": csrf}, Origin="http://evil.example")[0] == 403
        assert project.statuses() == {"cancelled": 1}
        assert served.ask("POST", f"/jobs/{job_id}/retry", {"csrf": csrf})[0] == 303
        assert project.statuses() == {"queued": 1}
        served.process.send_signal(signal.SIGTERM)
        out, err = served.process.communicate(timeout=60)
    assert (served.process.returncode, out, err) == (0, "", "")


COUNTED: Final = """
@job("shop.counted")
def counted(ctx):
    say("ran", ctx)
"""


def bulk_form(page: str) -> dict[str, str]:
    """The fields of the form that changes jobs; none: there is none any more."""
    form = re.search(r'action="/bulk/retry".*?</form>', page, re.DOTALL)
    found = re.findall(r'<input[^>]* name="(\w+)"(?: maxlength="\d+")? value="([^"]*)"', form[0]) if form else ()
    return {name: unescape(value) for name, value in found}


def goes_on(served: Served, page: str) -> str:
    """Click to the end."""
    while fields := bulk_form(page):
        status, answer = served.ask("POST", "/bulk/retry", fields)
        assert status == 303, answer
        page = served.ask("GET", served.location)[1]
    return page


@pytest.mark.slow
def test_a_retry_of_many_goes_on_after_kill_9_beside_a_second_operator_and_runs_each_job_once(
    project: Project,
) -> None:
    count = 4_500
    project.configure(handlers=COUNTED)
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    project.sql(f"{numbers} INSERT INTO cronjobs_jobs (job_type, payload) SELECT 'shop.counted', '{{}}' FROM n")
    cli(project, "jobs", "cancel", "--type", "shop.counted", "--yes")
    asked = f"/bulk?{urlencode({'verb': 'retry', 'all': '1', 'q': 'status:cancelled type:counted'})}"
    acts = "FROM cronjobs_audit WHERE action = 'retry'"
    with serving(project, "--actions") as ada, serving(project, "--actions") as grace:
        page = ada.log_in().ask("GET", asked)[1]
        assert f"{count:,} jobs</strong> will be retried" in page
        assert ada.ask("POST", "/bulk/retry", bulk_form(page))[0] == 303
        address = ada.location
        fields = bulk_form(ada.ask("GET", address)[1])
        theirs = grace.log_in().ask("GET", address)[1]
        with ThreadPoolExecutor(2) as threads:
            killed = threads.submit(ada.ask, "POST", "/bulk/retry", fields)
            other = threads.submit(goes_on, grace, theirs)  # of the same jobs
            until(lambda: project.value(f"SELECT count(*) {acts}") > 4, 60)
            ada.process.kill()
            killed.exception()  # none if it was through already
            with serving(project, "--actions") as again:
                last = goes_on(again, again.log_in().ask("GET", address)[1])
            other.result()
    assert "Nothing is left to do" in last
    assert project.statuses() == {"queued": count}
    while "queued" in project.statuses():
        project.tick()
    assert project.statuses() == {"succeeded": count}
    ran = project.times_ran()
    assert (len(ran), set(ran.values())) == (count, {1})
    details = [json.loads(row[0]) for row in project.sql(f"SELECT CAST(detail AS text) {acts}")]
    noted = Counter(job_id for detail in details for job_id in detail["ids"])
    assert (len(noted), set(noted.values())) == (count, {1})
    assert len({json.dumps(detail["filter"], sort_keys=True) for detail in details}) == 1


def test_idle_and_slow_connections_do_not_delay_a_page(sqlite_project: Project) -> None:
    with serving(sqlite_project) as served:
        served.log_in()
        began = SYSTEM.monotonic()
        idle = [socket.create_connection(served.address) for _ in range(IDLE)]
        slow = [socket.create_connection(served.address) for _ in range(IDLE)]
        try:
            for connection in slow:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
            for _ in range(5):
                assert served.ask("GET", "/")[0] == 200
            assert SYSTEM.monotonic() - began < SOON_S
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(timeout=SOON_S) == 0
        finally:
            for connection in (*idle, *slow):
                connection.close()


def test_a_head_that_comes_in_pieces_and_a_body_after_it_are_read_whole(sqlite_project: Project) -> None:
    with serving(sqlite_project) as served, closing(socket.create_connection(served.address)) as connection:
        host = f"{served.address[0]}:{served.address[1]}"
        said = f"POST /pause HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b"
        for part in (said[:20], said[20:70], said[70:]):
            connection.sendall(part.encode())
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"Server: cronjobs\r\n" in answer


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--host", "0.0.0.0"], "--behind-proxy"),
        (["--host", "192.168.1.2"], "--behind-proxy"),
        (["--host", "web1.example"], "--behind-proxy"),
        (["--host", "::"], "--behind-proxy"),
        (["--behind-proxy"], "--allow-host"),
    ],
)
def test_it_listens_to_others_only_behind_a_proxy(sqlite_project: Project, words: list[str], says: str) -> None:
    assert says in cli(sqlite_project, "web", "--port", "0", *words, code=2)


def test_a_port_that_is_taken_is_told(sqlite_project: Project) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        said = cli(sqlite_project, "web", "--port", str(taken.getsockname()[1]), code=1)
    assert "cannot listen on 127.0.0.1:" in said


def test_behind_a_proxy_that_strips_a_prefix_every_address_has_it(sqlite_project: Project) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with serving(sqlite_project, "--port", str(port), "--behind-proxy", "--allow-host", "jobs.example.com") as served:
        link = urlsplit(served.link)
        assert (link.scheme, link.netloc) == ("https", "jobs.example.com")
        served.address = ("127.0.0.1", port)
        by_proxy = {"Host": "jobs.example.com", "X-Forwarded-Prefix": "/a/b", "X-Forwarded-Proto": "https"}
        with closing(http.client.HTTPConnection(*served.address, timeout=60)) as connection:
            connection.request("GET", f"/?{link.query}", headers=by_proxy)
            answer = connection.getresponse()
        assert (answer.status, answer.headers["Location"]) == (303, "/a/b/")
        cookie = answer.headers["Set-Cookie"]
        assert set(cookie.split("; ")[1:]) == {"HttpOnly", "SameSite=Strict", "Path=/a/b", "Secure"}
        by_proxy["Cookie"] = cookie.partition(";")[0]
        status, page = served.ask("GET", "/jobs", **by_proxy)
        assert status == 200
        addresses = re.findall(r'(?:href|action|src)="(/[^"]*)"', page)
        assert addresses
        assert all(address.startswith("/a/b/") for address in addresses)
        for prefix in ("javascript:x", "//evil.example", "/a b", "/a/\u00e9"):
            forwarded = by_proxy | {"X-Forwarded-Prefix": prefix}
            assert served.ask("GET", "/jobs", **forwarded)[0] == 400
