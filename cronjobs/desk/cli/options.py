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
    """Which configuration and database a command uses."""

    ctx: typer.Context
    config: ConfigOption = None
    database_url: UrlOption = None

    def given(self, name: str) -> Any:
        """An option behind the command's name, or else before it."""
        return getattr(self, name, None) or self.ctx.find_root().params.get(name)


def _reason(why: str | None) -> str | None:
    """As the audit trail takes it."""
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


# --- what a shell completes: names in the file; neither handlers nor a database are asked at a Tab --------------------


def schedule_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Schedules that begin with *incomplete*."""
    settings = _settings(ctx)
    return [] if settings is None else [name for name in settings.schedules if name.startswith(incomplete)]


def type_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Job types that begin with *incomplete*: those with an entry, and those that schedules run."""
    settings = _settings(ctx)
    if settings is None:
        return []
    known = dict.fromkeys([*settings.job_types, *(each.job for each in settings.schedules.values())])
    return [name for name in known if name.startswith(incomplete)]


def schedule_or_type_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return list(dict.fromkeys([*schedule_names(ctx, incomplete), *type_names(ctx, incomplete)]))


def _settings(ctx: typer.Context) -> Any:
    """Of the file that the command would read; None: it cannot be read, which is not for a Tab to say."""
    from cronjobs.engine.config.load import load  # for a Tab only
    from cronjobs.errors import CronjobsError

    file = Source(ctx, ctx.params.get("config")).given("config") or os.environ.get("CRONJOBS_CONFIG")
    try:
        return load(Path(file or "cronjobs.yaml"), environ=os.environ, need_database=False)
    except (CronjobsError, OSError):
        return None
