"""``cronjobs`` and ``python -m cronjobs``: guard the tick's time first, then load everything else."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the process ends with the command's exit code."""
    from cronjobs import guard

    guard.open_standard_streams()
    if "run-due" in sys.argv[1:]:
        # Before any import that could hang (a network file system, a broken driver): from here on the kernel ends this
        # process in time. run-due moves the timer once it knows the file's budget.
        guard.arm()
    from cronjobs.cli.main import run

    run()


if __name__ == "__main__":
    main()
