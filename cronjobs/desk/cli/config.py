"""``cronjobs config …``: show the effective settings, and where each value comes from."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from cronjobs.desk.cli.commands import Commands
from cronjobs.desk.cli.loading import load_settings
from cronjobs.desk.cli.options import JsonOption, Source
from cronjobs.desk.cli.output import table, width, write
from cronjobs.desk.insight.effective_settings import Overrides, Setting, effective
from cronjobs.desk.insight.formatting import safe
from cronjobs.engine.command.printing import complain, json_text
from cronjobs.errors import UsageError
from cronjobs.masking import hidden_json
from cronjobs.text import one_line

app = Commands("Show the configuration in effect, and where each value comes from.")


@app.command("show", epilog="For example: cronjobs config show run, cronjobs config show schedules.nightly-report")
def show(
    source: Source,
    key: Annotated[
        str | None, typer.Argument(show_default=False, help="Show only this key and the keys below it, with defaults.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every key in effect, with its value and where the value comes from.

    A value comes from the default, a line of the file, an environment variable (also through ${…} in the file), the
    env_file, or the command line. Passwords are masked, and so is any value whose name suggests a secret. For a named
    entry, such as a schedule, the command shows only the keys given in the file. To see all keys of an entry, give its
    name as KEY. --json prints all keys of all entries. The command imports no handlers, so it does not show settings in
    @job. --json prints one array of {key, value, source, where}.
    """
    settings = load_settings(source, need_database=False)
    given = Overrides(source.given("config"), source.given("database_url"), os.environ)
    found = [each for each in effective(settings, given) if key is None or f"{each.key}.".startswith(f"{key}.")]
    if not found:
        raise UsageError(f'there is no key {one_line(str(key), 100)!r} here: "cronjobs config show" lists all')
    if as_json:
        write([json_text([each._asdict() for each in found])])
        return
    shown = [each for each in found if key is not None or each.is_written or not _in_entry(each)]
    rows = [[safe(each.key), safe(_text(each.value)), safe(_from(each))] for each in shown]
    write(table(rows, ["key", "value", "from"], room=width(), at_most={1: max(20, width() // 2)}))
    for problem in settings.problems:
        complain(str(problem))


def _in_entry(setting: Setting) -> bool:
    section = setting.key.partition(".")[0]
    return section in ("schedules", "job_types", "queues", "limits") or setting.key.startswith("alerts.")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else hidden_json(value)


def _from(setting: Setting) -> str:
    if setting.source == "default":
        return f"default: {setting.where}" if setting.where else "default"
    return f'{setting.where} is invalid: see "cronjobs check"' if setting.source == "bad" else setting.where
