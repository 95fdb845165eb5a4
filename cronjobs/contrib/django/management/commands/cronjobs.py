"""``manage.py cronjobs …``: the cronjobs command line, run after Django has been set up with the project's settings."""

from __future__ import annotations

import sys
from argparse import REMAINDER
from collections.abc import Iterable, Iterator
from typing import Any, Final

from django.conf import settings  # type: ignore[import-untyped]
from django.core.management.base import BaseCommand, CommandError  # type: ignore[import-untyped]

from cronjobs.__main__ import main
from cronjobs.desk.cli.loading import begun_by
from cronjobs.engine.config.django_project import config_file

DJANGOS: Final = ("--settings", "--pythonpath")  # manage.py has already handled these options
ENDS_ITS_PROCESS: Final = ("run-due", "dev", "exec", "web")


class Command(BaseCommand):
    """Passes on all words after ``cronjobs``, and exits with the command's exit code."""

    help = "The command line of cronjobs: manage.py cronjobs --help lists its commands."
    requires_system_checks: list[str] = []  # noqa: RUF012 Django's documented value for "no checks"

    def run_from_argv(self, argv: list[str]) -> None:
        begun_by(argv[0])
        _run([*_without_djangos(argv[2:])])

    def print_help(self, prog_name: str, subcommand: str) -> None:
        _run(["--help"])

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs=REMAINDER)

    def handle(self, *_: Any, words: list[str], **__: Any) -> None:
        """Run a command that code calls, as in ``call_command("cronjobs", "jobs", "list")``."""
        if words[:1] and words[0] in ENDS_ITS_PROCESS:
            raise CommandError(
                f"cronjobs {words[0]} would end this process: run it as a subprocess (in tests, drain() runs jobs)"
            )
        before = sys.argv
        try:
            _run(words)
        except SystemExit as end:
            if end.code:
                said = f"cronjobs {' '.join(words[:2])} ended with exit code {end.code}"
                raise CommandError(said, returncode=end.code) from None
        finally:
            sys.argv = before


def _run(words: list[str]) -> None:
    config = config_file(settings)
    given = any(word == "--config" or word.startswith("--config=") for word in words)
    sys.argv = ["cronjobs", *([] if given or config is None else ["--config", str(config)]), *words]
    main()


def _without_djangos(words: Iterable[str]) -> Iterator[str]:
    """Drop the options that Django has already handled."""
    rest = iter(words)
    for word in rest:
        if word == "--":
            yield word
            yield from rest
        elif word in DJANGOS:
            next(rest, None)
        elif not word.startswith(tuple(f"{name}=" for name in DJANGOS)):
            yield word
