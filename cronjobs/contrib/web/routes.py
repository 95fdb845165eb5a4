"""Which address is which page."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from sqlalchemy import Connection

from cronjobs.contrib.web.pages.hosts import hosts
from cronjobs.contrib.web.pages.job import job
from cronjobs.contrib.web.pages.jobs import jobs
from cronjobs.contrib.web.pages.overview import overview
from cronjobs.contrib.web.pages.queues import queues
from cronjobs.contrib.web.pages.schedule import schedule
from cronjobs.contrib.web.request import PageRequest, Refused, Response
from cronjobs.contrib.web.view import View
from cronjobs.engine.jobs.job_types import JobTypes

STATIC: Final = {"/static/style.css": "text/css; charset=utf-8", "/static/icon.svg": "image/svg+xml"}
MOST_PAGES: Final = 10_000


def static(path: str) -> Response | None:
    kind = STATIC.get(path)
    return None if kind is None else Response(packaged(path.rpartition("/")[2]), content_type=kind)


def packaged(name: str) -> bytes:
    """A file of ours that lies beside the modules."""
    return files("cronjobs.contrib.web").joinpath(name).read_bytes()


def page(request: PageRequest, connection: Connection, view: View, types: JobTypes) -> str:
    """The page at the request's address. Raises Refused."""
    match request.path.split("/")[1:]:
        case [""]:
            return overview(connection, view, types, _number(request.query.get("page", "1"), MOST_PAGES))
        case ["jobs"]:
            return jobs(connection, view, request.query)
        case ["jobs", job_id]:
            return job(connection, view, types, _number(job_id, 2**63 - 1))
        case ["schedule"]:
            return schedule(connection, view, types, request.query)
        case ["queues"]:
            return queues(connection, view, types)
        case ["hosts"]:
            return hosts(connection, view)
    raise Refused("404 Not Found", "there is no such page")


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= most):
        raise Refused("404 Not Found", "there is no such page")
    return int(text)
