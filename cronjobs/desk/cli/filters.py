"""The filter options that all commands on jobs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import typer

from cronjobs.desk.cli import parse_values
from cronjobs.desk.cli.options import schedule_names, type_names
from cronjobs.desk.insight.formatting import Times, status_word
from cronjobs.desk.insight.searching import STATUS_WORDS, read_cause, read_status
from cronjobs.desk.store.listing import Filter
from cronjobs.errors import UsageError
from cronjobs.model import Status

TypeOption = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", autocompletion=type_names, help="Only jobs of this type.")
]


def _parsed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def parser(text: str) -> Any:
        try:
            return read(text)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from None

    parser.__name__ = read.__name__
    return parser


StatusOption = Annotated[
    list[Status] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        parser=_parsed(read_status),
        autocompletion=lambda: STATUS_WORDS,
        help=(
            f"Only jobs in this state: {', '.join(STATUS_WORDS)}; repeatable. A command that changes jobs "
            "accepts only states in which it can change them."
        ),
    ),
]
QueueOption = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue.")]
ScheduleOption = Annotated[
    str | None,
    typer.Option("--schedule", metavar="NAME", autocompletion=schedule_names, help="Only jobs of this schedule."),
]
ConcurrencyKeyOption = Annotated[
    str | None, typer.Option("--concurrency-key", metavar="KEY", help="Only jobs with exactly this concurrency key.")
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="WHEN",
        help=(
            "Only jobs created, started, failed or ended since this time: 90m, 24h or 7d (ago), 02:00, or an "
            "instant like 2026-03-29T02:00."
        ),
    ),
]
ErrorTypeOption = Annotated[
    str | None,
    typer.Option(
        "--error-type",
        metavar="NAME",
        help="Only jobs whose last error has this type. NAME may omit the module, e.g. HTTPError.",
    ),
]


CauseOption = Annotated[
    str | None,
    typer.Option(
        "--cause",
        metavar="KEY",
        parser=_parsed(read_cause),
        help="Only dead jobs with this cause that nobody has retried or dismissed. KEY is the key "
        'that "cronjobs status" prints for the cause. This option is only for "jobs list", "jobs retry" and "jobs '
        'dismiss".',
    ),
]


@dataclass(frozen=True)
class Filters:
    """The options as typed. An option that was not given is None."""

    job_type: TypeOption = None
    status: StatusOption = None
    queue: QueueOption = None
    schedule: ScheduleOption = None
    concurrency_key: ConcurrencyKeyOption = None
    since: SinceOption = None
    error_type: ErrorTypeOption = None
    cause: CauseOption = None

    @property
    def given(self) -> dict[str, str]:
        """Return the options that were given, in the form for the audit trail."""
        several = {"status": ", ".join(self.statuses) or None}
        return {name: str(value) for name, value in (asdict(self) | several).items() if value is not None}

    @property
    def statuses(self) -> tuple[Status, ...]:
        """The statuses that were given, each once, or () for all."""
        return tuple(dict.fromkeys(self.status or ()))

    def wanted(self, times: Times) -> Filter:
        others = [status_word(status) for status in self.statuses if status is not Status.DEAD]
        if self.cause is not None and others:
            raise UsageError(f"--cause selects only dead jobs, so it cannot go with --status {others[0]}")
        since = None if self.since is None else parse_values.since(self.since, times)
        options = asdict(self) | {"since": since, "statuses": self.statuses}
        del options["status"]
        return Filter(**options)


ALL: Final = Filters()
