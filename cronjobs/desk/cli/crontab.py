"""``cronjobs crontab …``: manage our line in the user's crontab, and take over other lines."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from cronjobs.desk.cli.commands import CommandRow, Commands, LazyGroup
from cronjobs.desk.cli.options import ConfigOption, JsonOption, Source
from cronjobs.desk.cli.other_hosts import listed, other_hosts
from cronjobs.desk.cli.sync import planned
from cronjobs.desk.crontab import block as crontab
from cronjobs.desk.crontab import double_runs, host, program, swapping
from cronjobs.desk.crontab.lines import line_that_sets, place_of_block
from cronjobs.desk.crontab.other_blocks import blocks_that_run, lines_by_hand, other_blocks
from cronjobs.desk.insight.formatting import counted
from cronjobs.engine.command.printing import coloured, complain, echo
from cronjobs.engine.config import load as configuration
from cronjobs.engine.config.import_path import MODULE
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.errors import ConfigError, CronjobsError
from cronjobs.text import one_line


class CrontabGroup(LazyGroup):
    table = {  # noqa: RUF012 never changed
        "show": CommandRow(
            "crontab:show",
            'Print the lines that "crontab install" would write, and report whether your crontab has them.',
        ),
        "install": CommandRow(
            "crontab:install",
            "Run a test tick in cron's bare environment; if it succeeds, put the line into your crontab.",
        ),
        "remove": CommandRow("crontab:remove", "Remove only this configuration's block from your crontab."),
        "swap": CommandRow(
            "cronjobs.contrib.take_over.swap_cli:swap",
            "Let cronjobs run the imported lines of your crontab, and comment these lines out, in one write.",
        ),
        "restore": CommandRow(
            "cronjobs.contrib.take_over.swap_cli:restore",
            "Undo swap: restore the lines byte for byte, so that cron runs them again, and remove this "
            "configuration's block.",
        ),
        "import": CommandRow(
            "cronjobs.contrib.take_over.cli:import_crontab",
            "Convert your crontab to a cronjobs.yaml in which each line keeps the meaning that it has under cron.",
        ),
        "compare": CommandRow(
            "cronjobs.contrib.take_over.cli:compare",
            "Compare the times at which cron starts each line with the due times of its schedule, also across clock "
            "changes.",
        ),
        "wrap": CommandRow(
            "cronjobs.contrib.exec.wrap_cli:wrap",
            'Put "cronjobs exec" in front of the lines of your crontab, so that each run is recorded.',
        ),
        "unwrap": CommandRow(
            "cronjobs.contrib.exec.wrap_cli:unwrap",
            'Undo wrap: remove "cronjobs exec" from the lines that wrap changed, and restore them byte for byte.',
        ),
    }


app = Commands(
    "Manage the crontab line that runs cronjobs, and take over your crontab's other lines.", cls=CrontabGroup
)

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would change, as a diff; change nothing.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Install the line even if the test tick in cron's environment fails.")
]
AnywayOption = Annotated[
    bool,
    typer.Option(
        "--force", help="Install the line even if the test tick fails, and even if lines would then run twice."
    ),
]


def show(context: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Print the lines that "crontab install" would write, and report whether your crontab has them.

    Changes nothing. If this host has no crontab command, give the line to another scheduler.
    """
    wanted = CrontabArgs.of(context, config)
    state = CrontabState.of(wanted)
    if as_json:
        echo(json.dumps(state.report(wanted)))
        return
    echo(wanted.block.removesuffix("\n"))
    complain(state.sentence)
    if state.name == "differs":
        _echo_diff(state.installed or "", wanted.block, err=True)


def install(
    context: typer.Context, config: ConfigOption = None, dry_run: DryRunOption = False, force: AnywayOption = False
) -> None:
    """Run a test tick in cron's bare environment; if it succeeds, put the line into your crontab.

    The tick is real: it runs what is due, and shows which database cron will reach. If the tick fails, nothing is
    installed, and the exit code is the tick's. The death of a job is not a failure of the tick. If ticks would refuse
    to apply the file, for example because it would retire every schedule in the database, install tries no tick and
    changes nothing. The line is in a block marked with the configuration's path. Installing again replaces the block
    and changes no other line, so several projects can share a crontab. If cron itself already runs the command of a
    schedule, as cron does after "cronjobs crontab restore", install changes nothing, because that command would then
    run twice.
    """
    wanted = CrontabArgs.of(context, config)
    old = program.read()
    twice = double_runs.doubled(old, wanted.settings)
    doubts = []
    if twice.lines:
        doubts.append(
            f"{twice.sentence}, and ticks would run the same commands again: to hand these lines over to cronjobs, "
            f"run {twice.hand_over}"
        )
    if twice.changed:
        doubts.append(f"{twice.sentence_changed}. To run only one: {twice.settle_changed}")
    for doubt in doubts:
        if not force and crontab.find(old, wanted.file) is None:
            raise crontab.CrontabError(f"{doubt}; to install anyway, add --force")
        complain(doubt)
    new, taken = _with_orphans(crontab.install(old, wanted.block, wanted.file, place_of_block(old)), wanted)
    if dry_run:
        echo_dry_run(old, new)
        return
    environment = host.environment(new, wanted.file)
    tick = trial(wanted, environment, force, double_runs.left_to_cron(old, wanted.settings.schedules))
    if old == new:
        echo(f"{host.user().pw_name}'s crontab already has this line:")
    else:
        write(old, new)
        echo(f"installed in {host.user().pw_name}'s crontab:")
    echo(crontab.indented(wanted.line))
    for path, numbers in taken.items():
        echo(
            f"{counted(len(numbers), 'line')} that swap had handed over to {one_line(path, 300)} now "
            f"{'belongs' if len(numbers) == 1 else 'belong'} to this block; restore gives them back to cron"
        )
    print_tick(tick, wanted, environment)
    print_mail_target(environment, new, wanted)


def _with_orphans(text: str, wanted: CrontabArgs) -> tuple[str, dict[str, list[int]]]:
    """Hand over to *wanted* the swapped lines that its schedules run, and that their old configuration no longer runs.

    A configuration no longer runs its lines if its file was moved away, or if the crontab has no block for it. Without
    the handover, no command would know who runs these lines.
    """
    taken: dict[str, list[int]] = {}
    for path, numbers in swapping.swapped_to(text).items():
        is_left = not Path(path).exists() or crontab.find(text, Path(path)) is None
        if is_left and (ours := double_runs.orphans(text, wanted.settings, numbers)):
            taken[path] = ours
            text = swapping.hand_on(text, ours, path, wanted.file)
    return text, taken


def remove(context: typer.Context, config: ConfigOption = None, dry_run: DryRunOption = False) -> None:
    """Remove only this configuration's block from your crontab.

    The command finds the block by the path of the configuration file. The file itself may already be deleted.
    """
    file = config_file(context, config)
    old = program.read()
    new = crontab.remove(old, file)
    if dry_run:
        echo_dry_run(old, new)
    elif old == new:
        echo(f"{host.user().pw_name}'s crontab has no block for {file}: nothing to remove")
    else:
        write(old, new)
        echo(f"removed from {host.user().pw_name}'s crontab: cron no longer starts ticks for {file}")
        if swapping.restore(new, file) != new:
            complain(_left_as_comments(file, old, new))


def settings_of_ticks(file: Path, text: str) -> Settings:
    """Read *file* with the variables of its ticks, since the database's address may be only in the crontab *text*.

    Raises ConfigError.
    """
    return configuration.load(file, environ={**os.environ, **host.environment(text, file)})


def _left_as_comments(file: Path, old: str, new: str) -> str:
    """Describe who runs the lines that "crontab swap" commented out: another block, another host, or nobody."""
    comments = 'the lines that "cronjobs crontab swap" commented out are still comments'
    if here := blocks_that_run(new, swapping.restore(new, file), file):
        return f"{comments}, and {still_run_by(here, file, new)}"
    back = f"cronjobs crontab restore --config {quote(one_line(str(file), 300))}"
    try:
        others = other_hosts(settings_of_ticks(file, old), host.environment(old, file))
    except CronjobsError as error:
        return (
            f"{comments}. Unless another host ticks for this project, nothing runs them now. To let cron run them "
            f"again: {back} ({error})"
        )
    if others:
        return (
            f"{comments}, and {listed(others)} still runs these lines. If this host is to stay out of service, keep "
            "these comments: restore would make cron run the lines here, too"
        )
    return f"{comments}, so nothing runs them now. To let cron run them again: {back}"


def still_run_by(blocks: Sequence[tuple[str, double_runs.DoubleRuns]], file: Path, text: str) -> str:
    """Explain that ticks of *blocks* run the lines swapped to *file*, and how to hand them over to a block."""
    path = one_line(blocks[0][0], 300)
    has_block = crontab.find(text, file) is not None
    first = f"cronjobs crontab remove --config {quote(one_line(str(file), 300))}, then " if has_block else ""
    return (
        f"the ticks of this crontab's block for {path} run these lines, so restore would make cron run them, too. To "
        f"hand the lines over to that block: {first}cronjobs crontab install --config {quote(path)}"
    )


@dataclass(frozen=True)
class CrontabArgs:
    """The crontab lines that one configuration needs."""

    file: Path
    interpreter: Path
    line: str
    block: str
    settings: Settings

    @property
    def tick_limit(self) -> timedelta:
        # A tick ends itself one second after its budget. The other 14 seconds are a margin.
        return self.settings.run.budget + timedelta(seconds=15)

    @classmethod
    def of(cls, context: typer.Context, config: Path | None) -> CrontabArgs:
        file = config_file(context, config)
        settings = configuration.load(file, environ=os.environ, need_database=False)
        python = program.interpreter()
        if (mixed := program.mixed_release(python, file)) is not None:
            complain(mixed)
        return cls(
            file=file,
            interpreter=python,
            line=f"{crontab.when(settings.run.every)} {crontab.command(file, python)}",
            block=crontab.block(file, python, every=settings.run.every),
            settings=settings,
        )


@dataclass(frozen=True)
class CrontabState:
    """The state of the configuration's block in the crontab.

    ``name`` is same, differs, missing, broken (the block's begin and end marks do not pair up) or unknown (there is no
    crontab command here).
    """

    name: str
    sentence: str
    installed: str | None = None
    crontab: str = ""

    @classmethod
    def of(cls, wanted: CrontabArgs) -> CrontabState:
        owner = host.user().pw_name
        try:
            text = program.read()
            found = crontab.find(text, wanted.file)
        except crontab.BlockBroken as error:
            return cls("broken", str(error))
        except program.CrontabMissing as error:
            return cls("unknown", str(error))
        twice = double_runs.doubled(text, wanted.settings)
        if found is None and twice.lines:
            sentence = f"{twice.sentence}: to hand these lines over and install this block, run {twice.hand_over}"
            return cls("missing", sentence, None, text)
        if found is None:
            sentence = f'the crontab of {owner} does not have this block: run "cronjobs crontab install"'
            return cls("missing", sentence, None, text)
        if crontab.install(text, wanted.block, wanted.file) == text:
            return cls("same", f"{owner}'s crontab has exactly this", found.text, text)
        sentence = (
            f'the crontab of {owner} has a different version of this block; "cronjobs crontab install" would change it:'
        )
        return cls("differs", sentence, found.text, text)

    def report(self, wanted: CrontabArgs) -> dict[str, object]:
        mail = host.mail_program()
        return {
            "config": str(wanted.file),
            "user": host.user().pw_name,
            "interpreter": str(wanted.interpreter),
            "line": wanted.line,
            "block": wanted.block,
            "state": self.name,
            "message": self.sentence,
            "installed": self.installed,
            "daemon_runs": host.daemon_runs(),
            "mail_program": str(mail) if mail else None,
            "mailto": host.environment(self.crontab, wanted.file).get("MAILTO"),
        }


def config_file(context: typer.Context, given: Path | None) -> Path:
    """Return the absolute path from --config (before or after the command), $CRONJOBS_CONFIG or ./cronjobs.yaml."""
    return program.absolute(Source(context, given).file)


def write(old: str, new: str) -> None:
    try:
        copy = program.keep_copy(old)
    except OSError as error:
        # Continue without a copy, since the user can undo the change.
        complain(f"no copy of the old crontab was kept: {error.strerror}: {error.filename}")
        copy = None
    program.replace(old, new)
    if copy is not None:
        complain(f"the previous crontab: {copy}")


def trial(wanted: CrontabArgs, environment: dict[str, str], force: bool, run_by_cron: Collection[str]) -> host.BareTick:
    """Run one tick in cron's environment. Raises TrialTickFailed if the tick fails, unless *force*.

    If ticks would refuse to apply the file, this function runs no tick: a tick would run the schedules that are in the
    database instead of those in the file. ``host.bare_tick`` explains *run_by_cron*.
    """
    if not force and (refused := _why_refused(wanted, environment)):
        raise crontab.CrontabError(
            f"ticks would not apply {wanted.file}, and would go on with the schedules that are in the database: "
            f"{refused}. No tick was tried, and nothing was changed"
        )
    complain("running one tick in cron's environment …")
    limit = wanted.tick_limit
    tick = host.bare_tick(wanted.file, wanted.interpreter, environment, limit=limit, run_by_cron=run_by_cron)
    if not tick.works and not force:
        raise host.TrialTickFailed(tick)
    return tick


def _why_refused(wanted: CrontabArgs, environment: dict[str, str]) -> str | None:
    """Return why ticks would refuse the file's schedules. Return None if they would not, or if only a tick can tell."""
    try:
        return planned(configuration.load(wanted.file, environ=environment))[1].refused
    except CronjobsError:
        return None


def print_tick(tick: host.BareTick, wanted: CrontabArgs, environment: dict[str, str]) -> None:
    if tick.database:
        echo(f"a tick in cron's environment reached {tick.database}")
        _warn_of_another_database(tick.database, wanted.settings, environment)
    if not tick.works:
        complain(f"that tick failed with exit code {tick.code}, and every tick will fail until this is fixed:")
    elif tick.code:
        complain('a job died in that tick: see "cronjobs jobs list --status dead"')
    if tick.said:
        complain(crontab.indented(tick.said))


def _warn_of_another_database(reached: str, settings: Settings, environment: dict[str, str]) -> None:
    """Warn if this shell's settings name a different database from the one that the tick reached."""
    if not settings.database or reached == (here := str(parse_url(settings.database, settings.schema))):
        return
    complain(f"this shell's settings name another database: {here}")
    for name in sorted({*settings.variables, "CRONJOBS_DATABASE_URL", MODULE}):
        differs = os.environ.get(name) and os.environ[name] != environment.get(name)
        if differs and (name == MODULE or _changes_database(settings, name, environment.get(name))):
            value = os.environ[name] if name == MODULE else "…"  # other values may contain passwords
            complain(
                "to make ticks use the database of this shell's settings, write this line above the block in the "
                f"crontab: {name}={value}"
            )


def _changes_database(settings: Settings, name: str, value: str | None) -> bool:
    """Return whether the file names another database if the variable *name* has *value* (None: if it is unset)."""
    environ = {**os.environ, name: value} if value is not None else {**os.environ}
    if value is None:
        del environ[name]
    try:
        other = configuration.load(settings.file, environ=environ, need_database=False, only_database=True)
    except ConfigError:
        return True
    return (other.database, other.schema) != (settings.database, settings.schema)


def print_mail_target(environment: dict[str, str], text: str, wanted: CrontabArgs) -> None:
    """Print who gets the output of a failing tick.

    Warn if nobody gets the output, or if no cron daemon is running here.
    """
    mailto = environment.get("MAILTO", environment["LOGNAME"])
    elsewhere = 'look at "cronjobs status", or set "log" in the configuration'
    if host.mail_program() is None:
        complain(
            "this host cannot send mail (cron calls /usr/sbin/sendmail, which does not exist), so the output of "
            f"a failing tick is lost: {elsewhere}"
        )
    elif not mailto:
        number = line_that_sets("MAILTO", text, wanted.file)
        complain(
            f'line {number} of the crontab sets MAILTO="" above this block, so cron does not mail the output of a '
            f"failing tick: move the block above that line, {elsewhere}"
        )
    else:
        echo(f"when something fails, cron mails the output to {mailto}; a tick without failures prints nothing")
    if host.daemon_runs() is False:
        complain("no cron daemon is running here, so no tick will start yet (Debian: service cron start)")
    for number in lines_by_hand(text, wanted.file):
        complain(
            f"line {number} of the crontab starts ticks with this file, too, so two ticks start each time: delete that "
            'line with "crontab -e"'
        )
    for other in other_blocks(text, wanted.file):
        complain(f"{other.sentence}: if you no longer need that block, run {other.removal}")


def echo_dry_run(old: str, new: str) -> None:
    if old == new:
        complain("nothing would change")
    _echo_diff(old, new)


def _echo_diff(old: str, new: str, *, err: bool = False) -> None:
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in crontab.diff(old, new):
        painted = coloured(line, colours.get(line[0]), "stderr" if err else "stdout")
        complain(painted, is_safe=True) if err else echo(painted)
