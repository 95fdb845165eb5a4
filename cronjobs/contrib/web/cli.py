"""``cronjobs web``: the pages for the browser, served from here."""

from __future__ import annotations

import signal
from functools import partial
from types import FrameType
from typing import Annotated, Any

import typer
from werkzeug.middleware.proxy_fix import ProxyFix

from cronjobs.contrib.web.application import Application
from cronjobs.contrib.web.project import Current, OwnDoors
from cronjobs.contrib.web.security import ByLink, is_loopback
from cronjobs.contrib.web.serve import Server
from cronjobs.desk.cli.known_types import known_types
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.project_database import jobs_database, operator
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import echo
from cronjobs.engine.host.identity import Identity
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.text import one_line


def web(
    source: Source,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any that is free.")] = 8642,
    actions: Annotated[
        bool,
        typer.Option("--actions", help="Also act: retry, cancel, pause, resume, trigger, acknowledge …"),
    ] = False,
    behind_proxy: Annotated[
        bool,
        typer.Option("--behind-proxy", help="A proxy with TLS is in front; its X-Forwarded headers count."),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="HOST", help="Another name by which browsers may ask for it.", show_default=False
        ),
    ] = None,
) -> None:
    """Serve web pages: findings, every schedule's last day, jobs, queues, hosts.

    It needs pip install 'cronjobs[web]'. It prints a link, which works once, in one browser, and stops at Ctrl-C or
    SIGTERM. Without --actions the pages only show. It listens on this machine alone; from elsewhere use
    ssh -L 8642:127.0.0.1:8642, or a proxy with TLS.
    """
    if not is_loopback(host) and not behind_proxy:
        raise UsageError(
            f"--host {host} is not this machine's own: what is sent there can be read on the way. Put a proxy with TLS "
            "in front and say --behind-proxy, or use ssh -L 8642:127.0.0.1:8642"
        )
    if behind_proxy and not allow_host:
        raise UsageError("--behind-proxy needs --allow-host, the name by which browsers ask the proxy")
    with jobs_database(source, only_database=True) as (settings, database):
        known_types(settings)
        current = Current(settings, partial(load_settings, source, only_database=True))
        names = [name.lower() for name in allow_host or ()]
        access = ByLink(operator(), names, "", may_act=actions)
        application: Any = Application(current, OwnDoors(database), access, Identity.here().host)
        if behind_proxy:
            application = ProxyFix(application, x_for=0, x_proto=1, x_host=0, x_prefix=1)
        try:
            server = Server(host, port, application)
        except OSError as error:
            where = one_line(f"{host}:{port}", 100)
            raise CronjobsError(f"cannot listen on {where}: {error.strerror or error}") from None
        served = f"[{host}]" if ":" in host else host
        access.hosts = [f"{served}:{server.port}".lower(), *names]
        access.cookie = f"cronjobs_{server.port}"  # a browser keeps one jar for all ports of a host

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            server.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        shown = f"https://{names[0]}" if behind_proxy else f"http://{access.hosts[0]}"
        echo(f"open this link; it works once: {shown}/?once={access.token}")
        server.serve()
    leaving.leave(0, stuck=False)
