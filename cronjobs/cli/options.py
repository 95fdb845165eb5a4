"""Options that commands share."""

from __future__ import annotations

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
        help="The configuration; else $CRONJOBS_CONFIG, else ./cronjobs.yaml.",
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        show_default=False,
        help="The jobs database; else $CRONJOBS_DATABASE_URL, else the configuration's.",
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
        help="The reason, for status and the audit trail.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
