"""``cronjobs`` and ``python -m cronjobs``: guard the tick's time first, then load everything else."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the process ends with the command's exit code."""
    from cronjobs import guard

    guard.open_standard_streams()
    if _command(sys.argv[1:]) == "run-due":
        # Before any import that could hang (a network file system, a broken driver): from here on the kernel ends this
        # process in time. run-due moves the timer once it knows the file's budget.
        guard.arm()
    from cronjobs.cli.main import run

    run()


def _command(arguments: list[str]) -> str | None:
    """The command's name: the first word that is neither an option nor the value of one."""
    words = iter(arguments)
    for word in words:
        if word in ("--config", "--database-url"):
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None


if __name__ == "__main__":
    main()
