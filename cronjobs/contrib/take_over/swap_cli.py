"""``cronjobs crontab swap|restore``: move crontab lines from cron to cronjobs, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

import typer

from cronjobs.clock import SYSTEM, sleep
from cronjobs.contrib.take_over.cli import DAYS, CronOption, WhichCron, taken_over
from cronjobs.contrib.take_over.comparing import LineDifference, Pair, differences, paired
from cronjobs.contrib.take_over.unfinished_runs import UnfinishedRuns, unfinished_runs
from cronjobs.desk.cli.crontab import (
    CrontabArgs,
    DryRunOption,
    ForceOption,
    config_file,
    echo_dry_run,
    print_mail_target,
    print_tick,
    settings_of_ticks,
    still_run_by,
    trial,
    write,
)
from cronjobs.desk.cli.options import ConfigOption
from cronjobs.desk.cli.other_hosts import listed, other_hosts
from cronjobs.desk.crontab import block as crontab
from cronjobs.desk.crontab import double_runs, host, program, swapping
from cronjobs.desk.crontab.lines import as_shown
from cronjobs.desk.crontab.other_blocks import blocks_that_run
from cronjobs.engine.command.printing import complain, echo
from cronjobs.engine.config.host_timezone import host_timezone
from cronjobs.errors import CronjobsError
from cronjobs.model import duration_text
from cronjobs.text import one_line

MeantOption = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Swap even if cron keeps a line whose schedule has another command (both commands then run), if times or "
        "settings of the crontab and the schedules differ, or if earlier runs still wait.",
    ),
]
BothOption = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Restore even if another host runs the lines or may run them (each line may then run twice), or if this "
        "host's ticks, which restore stops, also do other work.",
    ),
]
SHOWN: Final = 3  # name at most this many differences, schedules or types
LISTED: Final = 20  # list at most this many lines
# If a trial tick ran long jobs until the next minute, cron has started that minute's lines, too. Another trial tick
# then skips their schedules' occurrences.
TRIALS: Final = 3
AFTER_CRON: Final = range(2, 60)  # in these seconds of a minute, cron has started the minute's lines
EARLY: Final = range(2, 40)  # in these, a tick also has time to run


def swap(
    context: typer.Context,
    config: ConfigOption = None,
    cron: CronOption = WhichCron.DEBIAN,
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    yes: MeantOption = False,
) -> None:
    """Let cronjobs run the imported lines of your crontab, and comment these lines out, in one write.

    First, swap tries one tick in cron's environment, as install does. swap lists the lines that have no schedule, and
    leaves them as they are. A copy of the old crontab is kept, and restore puts the lines back.
    """
    wanted = CrontabArgs.of(context, config)
    old = program.read()
    twice = double_runs.doubled(old, wanted.settings)
    if twice.wrapped:
        raise crontab.CrontabError(twice.sentence_wrapped)
    if twice.changed and not yes:
        raise crontab.CrontabError(
            f"{twice.sentence_changed}. Nothing was changed: {twice.settle_changed}; if both commands should run, add "
            "--yes"
        )
    found = taken_over(old, host_timezone(), cron)
    pairs = paired(found.taken, wanted.settings)
    numbers = [pair.taken.line.number for pair in pairs if pair.same_command]
    if not numbers and swapping.restore(old, wanted.file) != old:
        raise crontab.CrontabError(
            f"cronjobs already runs the lines of the crontab of {host.user().pw_name}: swap has handed them over to "
            f"{wanted.file}. To swap lines that you added since, first run cronjobs crontab restore"
        )
    handed_over = swapping.swapped_to(old).items()
    elsewhere = [path for path, lines in handed_over if double_runs.orphans(old, wanted.settings, lines)]
    if not numbers and elsewhere:
        raise crontab.CrontabError(
            f"the lines of the schedules in {wanted.file} were already handed over to "
            f"{one_line(elsewhere[0], 300)}. If the project has moved from there, run cronjobs crontab remove --config "
            f"{quote(one_line(elsewhere[0], 300))}, and then cronjobs crontab install, which takes these lines over"
        )
    if not numbers:
        raise crontab.CrontabError(
            f"no schedule in {wanted.file} runs a line of the crontab of {host.user().pw_name}, so there is nothing to "
            "swap. If cron runs the lines from another file, move them from there to this crontab first"
        )
    taken = [pair.schedule.name for pair in pairs if pair.schedule and pair.same_command]
    if not yes:
        _require_same(pairs, cron)
        _require_none_waiting(wanted.file, old, taken)
    new = swapping.swap(old, numbers, wanted.block, wanted.file)
    if dry_run:
        echo_dry_run(old, new)
    else:
        environment = host.environment(new, wanted.file)
        run_by_cron = [*taken, *double_runs.left_to_cron(old, wanted.settings.schedules)]
        for _ in range(TRIALS):
            # If ticks already run the lines, waiting would only let cron run them once more.
            minute = _wait_for_second(EARLY if crontab.find(old, wanted.file) is None else AFTER_CRON)
            tick = trial(wanted, environment, force, run_by_cron)
            if _minute(SYSTEM.now()) == minute:
                break
        write(old, new)
        # with --config, so that the command works from any folder
        way_back = f"cronjobs crontab restore --config {quote(one_line(str(wanted.file), 300))}"
        echo(f"cronjobs now runs {len(numbers)} of the crontab's lines; to go back: {way_back}")
        print_tick(tick, wanted, environment)
        if not tick.works:
            complain(
                "if you have swapped this crontab before and restored it, the first tick that works may repeat "
                "commands that cron ran in the last few minutes"
            )
        print_mail_target(environment, new, wanted)
        if _minute(SYSTEM.now()) != minute:
            complain("the trial tick lasted into the next minute: lines due in that minute may run twice")
    for pair in pairs:
        if not pair.same_command:
            _print_line(pair.taken.line.number, "no schedule runs it", pair.taken.line.text)
    for left in found.left:
        _print_line(left.number, left.why, left.text)


def restore(
    context: typer.Context,
    config: ConfigOption = None,
    cron: CronOption = WhichCron.DEBIAN,
    dry_run: DryRunOption = False,
    yes: BothOption = False,
) -> None:
    """Undo swap: restore the lines byte for byte, so that cron runs them again, and remove this configuration's block.

    Lines that you have added since the swap stay as they are. restore removes the block even if install wrote the block
    before the swap, because ticks of the block would run the lines, too. Without --yes, restore changes nothing in four
    cases: another block of this crontab runs the lines; another host ticks for this project, and so runs the lines'
    schedules; restore cannot read the file or the database, and so cannot find out whether another host ticks; this
    host's ticks also do other work, which would stop.
    """
    file = config_file(context, config)
    old = program.read()
    new = swapping.restore(old, file)
    if dry_run and new != old:  # show the change even if restore refuses it
        echo_dry_run(old, new)
    if new != old and not yes:
        _require_no_other_block(file, old, new)
        _require_no_other_host(file, old)
        _require_no_other_work(file, old, new)
    if old == new:
        whose = f"the crontab of {host.user().pw_name}"
        echo(f'{whose} has no lines that "crontab swap" handed over to {file}: nothing to restore')
        if others := swapping.swapped_to(old):
            ways = "; ".join(f"cronjobs crontab restore --config {quote(one_line(other, 300))}" for other in others)
            complain(f"the crontab has lines that were handed over to another configuration. To restore them: {ways}")
            raise typer.Exit(1)
        return
    if dry_run:
        _print_changed(old, new, file, cron)
        return
    write(old, new)
    echo(f"restored the crontab of {host.user().pw_name}: cron runs its lines again")
    _print_changed(old, new, file, cron)
    _print_unfinished(old, new, file)
    _print_no_ticks(file)


def _require_same(pairs: Sequence[Pair], cron: WhichCron) -> None:
    """Raise CrontabError if ``compare`` finds a line that its schedule would run differently.

    If a schedule still has the times that ``import`` wrote, they are accepted, although cron may start the line at
    other times around a clock change.
    """
    found = _differing([pair for pair in pairs if pair.same_command], cron)
    if not found:
        return
    shown = [f"line {each.taken.line.number} ({each.schedule.name}): {each.why}" for each in found[:SHOWN]]
    more = [f"{len(found) - SHOWN} more differences"] if len(found) > SHOWN else []
    names = {name for pair in pairs for name in pair.other_settings}
    secrets = " (to change secrets, edit the env_file)" if names - {"MAILTO"} else ""
    alerts = ' Alerts go to the addresses under "alerts", whatever MAILTO says.' if "MAILTO" in names else ""
    raise crontab.CrontabError(
        f"cronjobs would not run these lines as cron does: {'; '.join([*shown, *more])}. Nothing was changed: correct "
        f"the schedules{secrets}, or add --yes if you want the schedules as they are.{alerts} "
        '"cronjobs crontab compare" lists all differences'
    )


def _differing(pairs: Sequence[Pair], cron: WhichCron) -> list[LineDifference]:
    """Return the differences that ``compare`` finds, but ignore times that are still as ``import`` wrote them."""
    doubtful = [
        pair
        for pair in pairs
        if pair.schedule and (not pair.same_command or pair.other_settings or not pair.timed_by_import)
    ]
    if not doubtful:  # the usual case needs no simulation
        return []
    now = SYSTEM.now()
    return differences(doubtful, host_timezone(), now, now + timedelta(days=DAYS), cron.value)


def _require_none_waiting(file: Path, old: str, schedules: Collection[str]) -> None:
    """Raise CrontabError if old runs of *schedules* are waiting. Ticks would run these late, in addition to new runs.

    If the database cannot be read, do nothing here: the trial tick reports that.
    """
    runs = UnfinishedRuns()
    with suppress(CronjobsError):
        runs = unfinished_runs(settings_of_ticks(file, old), schedules)
    if runs.waiting:
        raise crontab.CrontabError(
            f"{runs.sentence_waiting}. Ticks would run these old runs late, in addition to new runs. Nothing was "
            f"changed: cancel them ({runs.cancel(file)}), or add --yes to let them run"
        )


def _require_no_other_block(file: Path, old: str, new: str) -> None:
    """Raise CrontabError if the ticks of another block of this crontab also run the lines that restore gives back."""
    if blocks := blocks_that_run(old, new, file):
        raise crontab.CrontabError(
            f"{still_run_by(blocks, file, old)}. Nothing was changed. If both should run the lines, add --yes"
        )


def _require_no_other_host(file: Path, old: str) -> None:
    """Raise CrontabError if another host ticks for *file*'s project, because cron here would repeat that host's runs.

    Also raise if the file or the database cannot be read, because another host may tick.
    """
    try:
        others = other_hosts(settings_of_ticks(file, old), host.environment(old, file))
    except CronjobsError as error:
        raise crontab.CrontabError(
            f"cronjobs cannot find out whether another host ticks for this project: {error}. If another host does, "
            "the lines would run there and here. Nothing was changed: if no other host ticks, add --yes to give cron "
            "its lines back"
        ) from None
    if others:
        raise crontab.CrontabError(
            f"{listed(others)} also ticks for this project and runs the schedules of these lines, so after restore the "
            "lines would run there and here. Nothing was changed. To take only this host out of service: cronjobs "
            f"crontab remove --config {quote(one_line(str(file), 300))}. To move the lines back to cron, first stop "
            "the ticks elsewhere, or add --yes"
        )


def _require_no_other_work(file: Path, old: str, restored: str) -> None:
    """Raise CrontabError if restore would stop ticks that also do other work than the lines of *restored*."""
    if crontab.find(old, file) is None:
        return
    settings = settings_of_ticks(file, old)
    twice = double_runs.doubled(restored, settings)
    stops = []
    if other := [name for name in settings.schedules if name not in twice.lines and name not in twice.changed]:
        stops.append(f"nothing would run its other schedules ({_some(other)})")
    scheduled = {schedule.job for schedule in settings.schedules.values()}
    # If a type that ``import`` wrote for a line has no schedule, cron runs the line.
    enqueued = [*(settings.job_types.keys() - scheduled - double_runs.types_of_lines(restored, settings.job_types))]
    if settings.imports:
        stops.append("jobs that your code enqueues would wait")
    elif enqueued:
        stops.append(f"jobs of types that have no schedule would wait ({_some(sorted(enqueued))})")
    if stops:
        config = f"--config {quote(one_line(str(file), 300))}"
        raise crontab.CrontabError(
            f"restore also stops the ticks for {file}, so {', and '.join(stops)}. Nothing was changed. To go on, add "
            "--yes. Then, to start ticks for the other work again, take the schedules of the restored lines out of the "
            f"file, and run cronjobs crontab install {config}"
        )


def _some(names: Sequence[str]) -> str:
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])


def _print_changed(old: str, restored: str, file: Path, cron: WhichCron) -> None:
    """Print the restored lines whose schedules have changed since the swap, so that cron runs them differently."""
    handed_over = swapping.swapped_to(crontab.remove(old, file)).get(str(file), [])
    try:
        settings = settings_of_ticks(file, old)
    except CronjobsError:  # _require_no_other_host or _print_unfinished reports it
        return
    pairs = paired(taken_over(restored, host_timezone(), cron).taken, settings)
    found = _differing([pair for pair in pairs if pair.taken.line.number in handed_over], cron)
    for each in found[:LISTED]:
        complain(f"line {each.taken.line.number} ({each.schedule.name}): {_changed(each)}")
    if len(found) > LISTED:
        complain(f"further lines that differ from their schedules: {len(found) - LISTED}")


def _changed(each: LineDifference) -> str:
    if not each.instants:
        return f"{each.why}; cron follows the crontab again"
    schedule = each.schedule
    at = schedule.cron or f"every {duration_text(schedule.every or timedelta())}"
    zone = "" if schedule.timezone == each.taken.timezone else f" ({schedule.timezone})"
    late = f", spread over {duration_text(schedule.spread)}" if schedule.spread else ""
    return f"the schedule ran at {at}{zone}{late}, but cron runs the line at {each.taken.line.when} again"


def _print_unfinished(old: str, restored: str, file: Path) -> None:
    """Print how many runs of the lines in *restored* are unfinished. Without ticks, nothing finishes them.

    *old* is the crontab that started the ticks.
    """
    try:
        settings = settings_of_ticks(file, old)
        twice = double_runs.doubled(restored, settings)
        runs = unfinished_runs(settings, [*twice.lines, *twice.changed])
    except CronjobsError as error:
        complain(
            "runs of these lines may still wait in the jobs database, and other hosts may still run the lines. "
            f"cronjobs cannot tell, because it cannot read the database: {error}"
        )
        return
    if runs.waiting:
        complain(
            f"{runs.sentence_waiting}, and cron does not run them. Ticks would run them after the next swap. To cancel "
            f"them: {runs.cancel(file)}"
        )
    if runs.running:
        complain(f"{runs.sentence_running}, and cron starts the next runs without waiting for an earlier run to end")


def _print_no_ticks(file: Path) -> None:
    config = f"--config {quote(one_line(str(file), 300))}"
    complain(
        f"cron starts no ticks for {file} any more. Unless another host ticks for this project, cronjobs status will "
        'report the finding "no_tick" in a few minutes. If you mean to swap again, acknowledge the finding then: '
        f"cronjobs ack {config} no_tick. If not, drop the project's tables: cronjobs db drop {config}"
    )


def _wait_for_second(wanted: range) -> datetime:
    """Wait for one of the *wanted* seconds of a minute. Return the minute.

    The trial tick makes the schedules active at once, for times after that tick. Cron notices only at the beginning of
    the next minute that the old lines are gone. If swap wrote the crontab before cron had started this minute's lines,
    nothing would run them. If the next minute began before swap had written the crontab, its lines might run twice.
    """
    if SYSTEM.now().second >= wanted.stop:
        complain("waiting for the next minute to begin, so that nothing runs twice …")
    while SYSTEM.now().second not in wanted:
        sleep(0.1)
    return _minute(SYSTEM.now())


def _minute(instant: datetime) -> datetime:
    return instant.replace(second=0, microsecond=0)


def _print_line(number: int, why: str, text: str) -> None:
    complain(f"line {number} stays with cron ({why}): {as_shown(text, 200)}")
