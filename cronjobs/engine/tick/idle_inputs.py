"""Write the file that a full tick leaves for the fast path of later ticks. ``probe.inputs`` describes the file."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cronjobs.clock import SYSTEM
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import Address
from cronjobs.engine.host.state_folder import State
from cronjobs.engine.probe.inputs import ALWAYS, METRICS_EVERY_S, Inputs, Sources, Start
from cronjobs.engine.probe.kernel_facts import read
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.store.ticks import CLOCK_SLACK, Overview
from cronjobs.engine.tick.mail_throttle import alarm_name, messages_name, unreported_name

if TYPE_CHECKING:
    from cronjobs.engine.probe.inputs import Pieces


def leave(start: Start, settings: Settings, address: Address, seen: Overview, spool: str) -> None:
    """Store the inputs for the fast path of this command line's next ticks. Call this after a tick without faults."""
    inputs = inputs_of(start, settings, address, seen, spool)
    if inputs is None:
        forget(start)
    elif State().read_bytes(start.name) != (content := inputs.to_bytes()):
        State().write_bytes(start.name, content)


def forget(start: Start) -> None:
    """Remove the inputs, so that the next tick of this command line is a full tick."""
    State().take(start.name)


def inputs_of(start: Start, settings: Settings, address: Address, seen: Overview, spool: str) -> Inputs | None:
    """Return the inputs, or None if the fast path cannot handle this project. *spool* comes from ``spool_address``."""
    if not start.folder or settings.by_django:  # the fast path cannot detect a change of Django's settings
        return None
    variables = sorted({*settings.variables, *ALWAYS})
    sources = Sources(start, variables, {str(file): content for file, content in settings.contents.items()})
    # Metrics and pings are due every few minutes, even if nothing else is.
    often = settings.metrics.textfile is not None or settings.run.ping is not None
    ours = {
        "config": str(settings.file),
        "fingerprint": fingerprint(settings),
        "defines_nothing": str(int(not settings.defines_something)),
        "alerts": str(int(settings.alerts is not None)),
        "schema_revision": seen.schema_revision,
        "oldest_code": seen.oldest_code,
        "linger_s": str(_linger_s(start, settings.run.linger)),
        "budget_s": str(settings.run.budget.total_seconds()),
        "every_s": str(settings.run.every.total_seconds()),
        "beyond_s": str((settings.run.lease + CLOCK_SLACK).total_seconds()),
        "alarm": alarm_name(settings.file, str(address)),
        "alarm_of_file": alarm_name(settings.file),
        "word": messages_name(settings.file),
        "unreported": unreported_name(settings.file),
        "spool": spool,
        "metrics_by": str(int(SYSTEM.now().timestamp()) + METRICS_EVERY_S) if often else "",
    }
    theirs = {"project": settings.project, "environment": settings.environment, "schema": address.schema or ""}
    if address.is_sqlite:
        ours["database"] = "sqlite"
        theirs["path"] = str(address.url.database)
    else:
        plain = _as_libpq_reads_it(settings.database, address)
        libpq = _libpq()
        if plain is None or libpq is None:
            return None
        ours |= {"database": "postgresql", "libpq": libpq}
        theirs["address"] = plain
    found = {name: sources.pieces_of(text) for name, text in theirs.items()}
    pieces: dict[str, Pieces] = {name: piece for name, piece in found.items() if piece is not None}
    return Inputs(sources, ours, pieces) if len(pieces) == len(found) else None


def _linger_s(start: Start, linger: timedelta | None) -> float:
    """Return the seconds after which a tick of this command line looks for work again, or 0 if it does not linger.

    A tick with ``--wait``, ``--limit`` or ``--budget`` does not linger, because each of these options is meant for one
    tick that looks for work once.
    """
    for_one = tuple(word.startswith((b"--wait", b"--limit", b"--budget")) for word in start.arguments)
    return 0 if linger is None or any(for_one) else linger.total_seconds()


def _as_libpq_reads_it(url: str, address: Address) -> str | None:
    """Return *url* without its scheme, or None if libpq reads the URL differently from SQLAlchemy."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

    scheme, _, rest = url.partition("://")
    try:
        theirs = conninfo_to_dict(f"postgresql://{rest}")
    except ProgrammingError:
        return None
    dialect: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]
    arguments, ours = dialect.create_connect_args(address.url)
    same = not arguments and {name: str(value) for name, value in theirs.items()} == {
        name: str(value) for name, value in ours.items()
    }
    return rest if scheme and same else None


def _libpq() -> str | None:
    """Return the path of the libpq that psycopg has loaded into this process, or None if the path is unknown."""
    for line in (read("/proc/self/maps") or "").splitlines():
        _, slash, path = line.partition("/")
        if path.rpartition("/")[2].startswith("libpq") and ".so" in path:
            return slash + path
    return None
