"""``cronjobs crontab wrap|unwrap``: put exec before the lines of the user's crontab, or remove it."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from cronjobs.contrib.exec import wrapping
from cronjobs.contrib.exec.wrapping import Rewritten
from cronjobs.desk.cli.crontab import DryRunOption, echo_dry_run, write
from cronjobs.desk.cli.options import ConfigOption, Source
from cronjobs.desk.crontab import block, host, program
from cronjobs.desk.crontab.lines import as_shown, exec_config, job_lines, unwrapped
from cronjobs.desk.insight.formatting import counted
from cronjobs.engine.command.printing import complain, echo
from cronjobs.engine.config.load import load

SHOWN = 100  # a longer line is cut to this many characters


def wrap(context: typer.Context, config: ConfigOption = None, dry_run: DryRunOption = False) -> None:
    """Put "cronjobs exec" in front of the lines of your crontab, so that each run is recorded.

    Cron still runs the lines. A line behaves as before: it has the same shell, stdin, environment, folder, output and
    exit code, and cron still reads what follows a "%" as stdin. wrap does not change lines with @reboot, or lines that
    would become longer than cron accepts (998 bytes), but lists them. wrap writes the crontab once, and keeps a copy of
    the old one. Run wrap again after adding lines. Runs are recorded in the project's database (--config,
    $CRONJOBS_CONFIG, ./cronjobs.yaml), or in your state folder if there is no project.
    """
    old = program.read()
    file = project_file(context, config)
    # Refuse a broken file now: exec would run its command, but no command could show the runs.
    if file is not None:
        load(file, environ=os.environ, need_database=False)
    new = wrapping.wrap(old, block.shell_words(own_program()), None if file is None else block.shell_words([str(file)]))
    _write(old, new, dry_run)
    _name_left(new)
    _name_recorded_elsewhere(old, file)
    if dry_run:
        return
    for change in new.changes:
        echo(f"{change.name}: {change.line.when}  {as_shown(change.line.written, SHOWN)}")
    if not new.changes:
        echo(f"the crontab of {host.user().pw_name} has no line to wrap")
        return
    echo(
        f"wrapped {counted(len(new.changes), 'line')}; runs are recorded {_where(file)}. "
        '"cronjobs status" shows a line once it has run'
    )
    if file is None and os.environ.get("XDG_STATE_HOME"):
        complain(
            "XDG_STATE_HOME is set here, but not in cron's environment: set it in the crontab too, or unset it here"
        )


def unwrap(dry_run: DryRunOption = False) -> None:
    """Undo wrap: remove "cronjobs exec" from the lines that wrap changed, and restore them byte for byte.

    Recorded runs are kept. unwrap writes the crontab once, and keeps a copy of the old one.
    """
    old = program.read()
    new = wrapping.unwrap(old)
    _write(old, new, dry_run)
    _name_left(new)
    if not dry_run:
        done = f"unwrapped {counted(len(new.changes), 'line')}" if new.changes else "no line is wrapped"
        echo(f"{done} in the crontab of {host.user().pw_name}")


def project_file(context: typer.Context, config: Path | None) -> Path | None:
    """Return the absolute path of --config, else $CRONJOBS_CONFIG, else ./cronjobs.yaml if it exists, else None."""
    named = Source(context, config).given("config") or os.environ.get("CRONJOBS_CONFIG")
    if not named and not Path("cronjobs.yaml").exists():
        return None
    return program.absolute(Path(named or "cronjobs.yaml"))


def own_program() -> list[str]:
    """Return the words that run cronjobs: the script beside the interpreter, because it reads better, else -m."""
    python = program.interpreter()
    script = python.with_name("cronjobs")
    return [str(script)] if os.access(script, os.X_OK) else [str(python), "-P", "-m", "cronjobs"]


def _write(old: str, new: Rewritten, dry_run: bool) -> None:
    if dry_run:
        echo_dry_run(old, new.text)
    elif old != new.text:
        write(old, new.text)


def _name_recorded_elsewhere(old: str, file: Path | None) -> None:
    """Report the wrapped lines of *old* whose runs are recorded for a project other than *file*.

    wrap leaves these lines unchanged.
    """
    elsewhere: dict[str | None, list[int]] = {}
    for line in job_lines(old):
        if unwrapped(line) is not None and (project := exec_config(line)) != (None if file is None else str(file)):
            elsewhere.setdefault(project, []).append(line.number)
    for project, numbers in elsewhere.items():
        lines = f"line {numbers[0]} is" if len(numbers) == 1 else f"lines {', '.join(map(str, numbers))} are"
        complain(
            f"{lines} already wrapped; runs are recorded {_where(project)}. To record them {_where(file)} "
            'instead, run "cronjobs crontab unwrap" and then the same wrap command again'
        )


def _where(project: Path | str | None) -> str:
    return "in your state folder" if project is None else f"for {project}"


def _name_left(new: Rewritten) -> None:
    for each in new.left:
        complain(f"line {each.line.number} is left as it is ({each.why}): {as_shown(each.line.written, SHOWN)}")
