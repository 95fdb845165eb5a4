"""The program behind ``cronjobs`` and ``python -m cronjobs``.

For cron's tick, try the fast path before other imports.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Run the command line. The process exits with the command's exit code."""
    try:
        command = _load(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # the installation is broken, so use no other code of cronjobs
        sys.exit(_cannot_start(error))
    command()


def _load(arguments: list[str]) -> Callable[[], object]:
    """Import only the modules that this command line needs. Return the function that runs the command."""
    command = _command(arguments)
    if command == "exec" and (run_command := _exec(arguments)) is not None:
        return run_command
    if command == "run-due":
        from cronjobs.engine.probe.fast_path import settle_tick

        # settle_tick also starts the kernel timer, before any import or file access that could hang, for example on a
        # network file system or in a broken driver. If this process hangs, the timer kills it. The full tick moves the
        # timer once it knows the file's budget.
        code = settle_tick(arguments)
        if code is not None:
            return lambda: os._exit(code)
        from cronjobs import starting

        starting.begin()
        from cronjobs.engine.run_due.options import tick_options

        given = tick_options(arguments)
        if given is not None:
            from cronjobs.engine.command.fault import guarded
            from cronjobs.engine.run_due.command import run_tick

            return lambda: guarded(lambda: run_tick(given))
    else:
        from cronjobs import starting
        from cronjobs.engine.probe.timer import open_standard_streams

        open_standard_streams()
        starting.begin()
    from cronjobs.installed import needed

    run: Callable[[], object] = needed("cronjobs.desk.cli.main", command or "the command line").run
    return run


def _exec(arguments: list[str]) -> Callable[[], object] | None:
    """Return the function that runs ``exec`` directly.

    Return None if help is requested, or if the extra is not installed. The command line is then left to typer.
    """
    try:
        from cronjobs.contrib.exec.arguments import wants_help
    except ModuleNotFoundError:
        return None
    if wants_help(arguments):
        return None
    from cronjobs.contrib.exec.start import run

    return lambda: run(arguments)


def _command(arguments: list[str]) -> str | None:
    """Return the command's name: the first word that is neither an option nor an option's value."""
    words = iter(arguments)
    for word in words:
        if word in ("--config", "--database-url"):
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


def _cannot_start(error: Exception) -> int:
    from cronjobs.version import __version__

    sys.stderr.write(
        f"cronjobs {__version__} cannot start, {type(error).__name__}: {str(error)[:1000]}: "
        f'the installation looks incomplete; run "{sys.executable} -m pip check"; -v shows the traceback\n'
    )
    if {"-v", "--verbose"} & {*sys.argv}:
        import traceback

        traceback.print_exception(error)
    return 70  # EX_SOFTWARE of sysexits.h


if __name__ == "__main__":
    main()
