"""``cronjobs alerts …``: test the channels of ``alerts:``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cronjobs.clock import SYSTEM
from cronjobs.contrib.alerts.deliver import deliver
from cronjobs.contrib.alerts.texts import note, test_words
from cronjobs.desk.cli.commands import Commands
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import Source
from cronjobs.desk.insight.formatting import safe
from cronjobs.engine.command.printing import complain, echo
from cronjobs.engine.config import trust
from cronjobs.engine.host.identity import Identity
from cronjobs.errors import UsageError

app = Commands("Send a test message through the alert channels.")


@app.command("test", epilog="For example: cronjobs alerts test ops")
def send_test(
    source: Source,
    channel: Annotated[str | None, typer.Argument(help="A channel from alerts.channels. Default: all of them.")] = None,
) -> None:
    """Send a test message through one channel or all of them: as mail, as a POST, or by running the channel's command.

    "alerts test" does not use the database. The exit code is 0 if every message was delivered, 1 if a message was not
    delivered (stderr says why), 2 if there is no such channel.
    """
    settings = load_settings(source, need_database=False)
    channels = {} if settings.alerts is None else settings.alerts.channels
    for problem in settings.problems:
        complain(str(problem))
    if not channels:
        example = "{mail: {host: localhost, tls: none, from: cron@example.com, to: [you@example.com]}}"
        raise UsageError(
            f'{settings.file} has no channel; for example, write "alerts: {{channels: {{ops: {example}}}}}"'
        )
    if channel is not None and channel not in channels:
        raise UsageError(f'there is no channel "{channel}"; there are: {", ".join(sorted(channels))}')
    host, now = Identity.here().host, SYSTEM.now()
    chosen = [name for name in channels if channel in (None, name)]
    trust.require(settings, os.environ, programs=True)
    messages = {name: note(test_words(name), settings, host, now) for name in chosen}
    errors = dict(deliver(messages, channels, settings.folder))
    for name in chosen:
        error = errors[name]
        if error is None:
            echo(f"{safe(name)}: delivered")
        else:
            complain(f"{name}: not delivered: {error}")
    if any(errors.values()):
        raise typer.Exit(1)
