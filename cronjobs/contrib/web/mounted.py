"""The pages mounted in your own app, with the app's users, login and web server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import Connection
from werkzeug.exceptions import ServiceUnavailable

from cronjobs import masking
from cronjobs.contrib.web.application import Application, refusal
from cronjobs.contrib.web.project import AppConnections, Current, Doors, OwnDatabase
from cronjobs.contrib.web.security import AppAccess, MayAct, Viewer
from cronjobs.engine.config.load import load
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.errors import CronjobsError

Connect = Callable[[], AbstractContextManager[Connection]]


def app(
    connect: Connect | None = None,
    *,
    viewer: Viewer | None = None,
    may_act: MayAct | None = None,
    config: str | Path | None = None,
) -> Mounted:
    """Return the pages as one WSGI callable. You can mount it at any path, because it honours SCRIPT_NAME.

    *connect* is ``engine.connect`` of the app's SQLAlchemy engine. Without *connect*, the pages open the database given
    in the configuration. *viewer* gets the WSGI environment and returns the user's name, or None for a user who may see
    nothing. Without *viewer*, nobody sees anything. *may_act* gets the WSGI environment and returns whether the user
    may act. Without *may_act*, nobody may act. *config* is the path of cronjobs.yaml (default: $CRONJOBS_CONFIG, else
    ./cronjobs.yaml). Nothing reads the file or opens the database before the first request.
    """
    return Mounted(connect, AppAccess(viewer, may_act), None if config is None else Path(config))


def _nobody() -> AbstractContextManager[Connection]:
    raise AssertionError("somebody was let in")


@dataclass
class Mounted:
    """The WSGI callable that ``app`` returns. ``close`` closes the database connections that the pages have opened.

    The pages use the database through ``doors``, else through ``connect``, else as the configuration file says.
    """

    connect: Connect | None
    access: AppAccess
    config: Path | None
    doors: Doors | None = None
    _made: Application | None = None
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._lock:
            if self._made is None:
                try:
                    self._made = self._make()
                except CronjobsError as error:  # the next request tries again
                    return refusal(ServiceUnavailable(str(error)))(environ, start_response)
        return self._made(environ, start_response)

    def _make(self) -> Application:
        if self.access.viewer is None:  # nobody may see the pages, so read no file, and open no database
            nothing = Settings(Path("cronjobs.yaml"), Path())
            return Application(Current(nothing), AppConnections(_nobody), self.access, "")
        settings = self._settings()
        doors: Doors
        if self.doors is not None:
            doors = self.doors
        elif self.connect is None:
            doors = OwnDatabase(Database(parse_url(settings.database, settings.schema), connections=4))
        else:
            doors = AppConnections(self.connect, settings.schema)
        return Application(Current(settings, self._settings), doors, self.access, Identity.here().host)

    def _settings(self) -> Settings:
        need = self.connect is None and self.doors is None
        settings = load(self.config, environ=os.environ, need_database=need, only_database=True)
        masking.remember(settings.secrets | masking.named_secrets(os.environ))
        return settings

    def close(self) -> None:
        if self._made is not None and isinstance(self._made.doors, OwnDatabase):
            self._made.doors.database.close()


def flask_blueprint(
    connect: Connect | None = None,
    *,
    viewer: Viewer | None = None,
    may_act: MayAct | None = None,
    config: str | Path | None = None,
    name: str = "cronjobs",
) -> Any:
    """Return the pages of ``app()`` as a Flask blueprint.

    Register the blueprint with ``flask_app.register_blueprint(flask_blueprint(…), url_prefix="/jobs")``. The pages call
    *viewer* and *may_act* inside Flask's request, so both functions can use the request's session and user.
    """
    flask: Any = import_module("flask")
    pages = app(connect, viewer=viewer, may_act=may_act, config=config)
    blueprint = flask.Blueprint(name, __name__)

    def show(path: str = "") -> Any:
        # Pass the request's stream, not its data. Otherwise a visitor without access could make the app read a large
        # body.
        environ = dict(flask.request.environ) | {"wsgi.input": flask.request.stream}
        mount, whole = environ.get("SCRIPT_NAME", ""), environ.get("PATH_INFO", "")
        before = whole[: len(whole) - len(path.encode().decode("latin-1"))].rstrip("/")
        environ |= {"SCRIPT_NAME": mount + before, "PATH_INFO": whole[len(before) :] or "/"}
        return flask.Response.from_app(pages, environ)

    methods = ["GET", "POST"]
    blueprint.add_url_rule("/", "pages", show, methods=methods)
    blueprint.add_url_rule("/<path:path>", "page", show, methods=methods)
    return blueprint
