"""``cronjobs init``: write a first cronjobs.yaml and a first handler that run unchanged."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cronjobs.desk.cli.progress import is_interactive
from cronjobs.desk.init.plan import YAML, Choices, InitPlan, next_question, plan
from cronjobs.desk.init.starter import SCHEMA_FILE
from cronjobs.desk.init.surroundings import Surroundings, look_around
from cronjobs.desk.init.write import refuse_what_is_there, write
from cronjobs.engine.command.printing import echo
from cronjobs.text import visible


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; created if missing.")] = Path(),
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask: accept every proposal, and edit alembic's env.py.")
    ] = False,
) -> None:
    """Write a cronjobs.yaml and a first handler that suit the app in the folder and work without changes.

    The command looks at .env and DATABASE_URL, the app's package, manage.py, alembic, the dependencies, git and your
    crontab, and prints what it chose. On a terminal it first asks you, and proposes an answer to each question. On
    SQLite it creates the tables.

    The command overwrites no file. It may add lines to two of your files: .gitignore and, if you agree, alembic's
    env.py. Without the lines in env.py, alembic's autogenerate would drop the tables of cronjobs. Editors use
    cronjobs.schema.json to complete and check the YAML.
    """
    # Refuse before the user has answered any question.
    refuse_what_is_there(folder, (YAML, SCHEMA_FILE))
    around = look_around(folder, os.environ)
    chosen = Choices() if yes or not is_interactive() else _asked(around)
    planned = plan(around, chosen.without_asking(edit=yes))
    refuse_what_is_there(folder, planned.files)
    for line in write(folder, planned):
        echo(line)
    _print(folder, planned)


def _asked(around: Surroundings) -> Choices:
    chosen = Choices()
    while (question := next_question(around, chosen)) is not None:
        chosen = replace(chosen, **{question.about: typer.confirm(visible(question.text), default=True, err=True)})
    return chosen


def _print(folder: Path, planned: InitPlan) -> None:
    if planned.found:
        echo("found:")
    for line in planned.found:
        echo(f"  {visible(line)}")
    echo("next:")
    if folder.absolute() != Path.cwd():
        echo(f"  cd {visible(shlex.quote(str(folder)))}")
    for command in planned.commands:
        echo(f"  {command}")
    for line in planned.then:
        echo(visible(line))
