"""``cronjobs web``: serve the web pages from this machine."""

from __future__ import annotations

import signal
from functools import partial
from types import FrameType
from typing import Annotated, Any

import typer
from werkzeug.middleware.proxy_fix import ProxyFix

from cronjobs.contrib.web.application import Application
from cronjobs.contrib.web.project import Current, OwnDatabase
from cronjobs.contrib.web.security import LinkAccess
from cronjobs.contrib.web.serve import Server
from cronjobs.desk.cli.known_types import known_types
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import Source
from cronjobs.desk.cli.project_database import jobs_database, operator
from cronjobs.engine.command import leaving
from cronjobs.engine.command.printing import echo
from cronjobs.engine.config.fields import is_loopback
from cronjobs.engine.host.identity import Identity
from cronjobs.errors import CronjobsError, UsageError
from cronjobs.text import one_line


def web(
    source: Source,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 means any free port.")
    ] = 8642,
    actions: Annotated[
        bool,
        typer.Option(
            "--actions", help="Allow actions on the pages: retry, cancel, pause, resume, trigger, acknowledge …"
        ),
    ] = False,
    behind_proxy: Annotated[
        bool,
        typer.Option("--behind-proxy", help="Trust the X-Forwarded headers of the TLS proxy in front of this server."),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="HOST",
            help="Also accept this host name from browsers. May be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve web pages: findings, what each schedule did in the last 24 hours, jobs, queues, hosts.

    web needs pip install 'cronjobs[web]'. It prints a link that works once, in one browser, and serves until Ctrl-C or
    SIGTERM. Without --actions, the pages are read-only. By default, web listens on this machine only. To open the pages
    from elsewhere, use ssh -L 8642:127.0.0.1:8642 or a TLS proxy.
    """
    if not is_loopback(host) and not behind_proxy:
        raise UsageError(
            f"--host {host} opens the pages to the network, where browsers send everything unencrypted. Put a TLS "
            "proxy in front and add --behind-proxy, or use ssh -L 8642:127.0.0.1:8642"
        )
    if behind_proxy and not allow_host:
        raise UsageError("--behind-proxy needs --allow-host: the host name that browsers use for the proxy")
    with jobs_database(source, only_database=True) as (settings, database):
        known_types(settings)
        # If the file goes away, report that, and do not show what exec records without a project.
        again = partial(load_settings, source, only_database=True, without_project=settings.without_project)
        current = Current(settings, again)
        names = [name.lower() for name in allow_host or ()]
        access = LinkAccess(operator(), names, "", may_act=actions)
        application: Any = Application(current, OwnDatabase(database), access, Identity.here().host)
        if behind_proxy:
            application = ProxyFix(application, x_for=0, x_proto=1, x_host=0, x_prefix=1)
        try:
            server = Server(host, port, application)
        except OSError as error:
            where = one_line(f"{host}:{port}", 100)
            raise CronjobsError(f"cannot listen on {where}: {error.strerror or error}") from None
        served = f"[{host}]" if ":" in host else host
        # No other site can have the name "localhost".
        local = [f"localhost:{server.port}"] if is_loopback(host) else []
        access.hosts = [f"{served}:{server.port}".lower(), *local, *names]
        # Browsers share cookies between the ports of a host, so the cookie's name has the port.
        access.cookie = f"cronjobs_{server.port}"

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            server.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        shown = f"https://{names[0]}" if behind_proxy else f"http://{access.hosts[0]}"
        echo(f"open this link (it works only once): {shown}/?once={access.token}")
        server.serve()
    leaving.leave(0, stuck=False)
