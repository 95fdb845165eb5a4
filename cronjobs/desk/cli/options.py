"""Options that commands share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cronjobs.text import clean, one_line

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        show_default=False,
        help="The configuration. Default: $CRONJOBS_CONFIG, else ./cronjobs.yaml.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        show_default=False,
        help="The jobs database. Default: $CRONJOBS_DATABASE_URL, else the configuration's.",
    ),
]


@dataclass(frozen=True)
class Source:
    """The options that select a command's configuration and database."""

    ctx: typer.Context
    config: ConfigOption = None
    database_url: UrlOption = None

    def given(self, name: str) -> Any:
        """Return an option's value, whether it was given after the command's name or before it."""
        return getattr(self, name, None) or self.ctx.find_root().params.get(name)

    @property
    def file(self) -> Path:
        """The configuration file: --config, else $CRONJOBS_CONFIG, else ./cronjobs.yaml."""
        return Path(self.given("config") or os.environ.get("CRONJOBS_CONFIG") or "cronjobs.yaml")


def _reason(why: str | None) -> str | None:
    """Return ``--why`` in the form that the audit trail stores."""
    return one_line(clean(why), 500) if why and why.strip() else None


WhyOption = Annotated[
    str | None,
    typer.Option(
        "--why",
        "--reason",
        metavar="TEXT",
        callback=_reason,
        show_default=False,
        help="The reason, for the audit trail; status shows it for pauses and acknowledged findings.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


# --- shell completion: names from the file only; a Tab must not import handlers or open a database --------------------


def schedule_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return schedules that begin with *incomplete*."""
    settings = _settings(ctx)
    return [] if settings is None else [name for name in settings.schedules if name.startswith(incomplete)]


def type_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return job types that begin with *incomplete*, from ``job_types:`` and from schedules."""
    settings = _settings(ctx)
    if settings is None:
        return []
    known = dict.fromkeys([*settings.job_types, *(each.job for each in settings.schedules.values())])
    return [name for name in known if name.startswith(incomplete)]


def schedule_or_type_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return list(dict.fromkeys([*schedule_names(ctx, incomplete), *type_names(ctx, incomplete)]))


def _settings(ctx: typer.Context) -> Any:
    """Load the file that the command would read, or return None if that fails: a completion reports no errors."""
    from cronjobs.engine.config.load import load  # import it here, since only completion needs it
    from cronjobs.errors import CronjobsError

    try:
        return load(Source(ctx, ctx.params.get("config")).file, environ=os.environ, need_database=False)
    except (CronjobsError, OSError):
        return None
