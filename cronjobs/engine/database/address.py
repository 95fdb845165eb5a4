"""Parse a database URL, in any form that apps use, into an Address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from cronjobs import masking
from cronjobs.engine.rules.database_url import url_fault
from cronjobs.errors import UsageError


@dataclass(frozen=True)
class Address:
    """A database URL that names our driver, and the schema as a separate field. ``str()`` hides the password."""

    url: URL
    schema: str | None = None

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    def __str__(self) -> str:
        # The query may also contain a password (libpq accepts ?password=…), and the value of a misspelt option may be a
        # secret.
        hidden = {
            key: value if masking.is_public_option(key, str(value)) else masking.MASK
            for key, value in self.url.query.items()
        }
        hosts = hidden.pop("host", None)
        if self.schema:
            hidden["schema"] = self.schema
        plain = self.url.set(drivername=self.url.get_backend_name(), query=hidden)
        if not isinstance(hosts, tuple):
            return plain.render_as_string(hide_password=True)
        return plain.set(host=_SEVERAL).render_as_string(hide_password=True).replace(_SEVERAL, ",".join(hosts))


_SEVERAL: Final = "several-hosts"

# These query parameters are for other tools (Prisma, asyncpg). libpq would refuse them.
_NOT_LIBPQ: Final = (
    "schema",
    "pgbouncer",
    "connection_limit",
    "pool_timeout",
    "statement_cache_size",
    "prepared_statement_cache_size",
    "socket_timeout",
)


def parse_url(text: str, schema: str | None = None) -> Address:
    """Parse a database URL in any of the forms that apps use.

    ``postgres://``, ``postgresql+asyncpg://``, ``+psycopg2`` and Prisma's ``?schema=`` all become psycopg 3 URLs, and
    ``sqlite+aiosqlite://`` becomes a sqlite3 URL. Several hosts are written as for libpq: ``one:5432,two:5433``.
    *schema* overrides the URL's schema. Raises UsageError if the URL cannot be used. The message contains no password.
    """
    if fault := url_fault(text):
        raise UsageError(fault)
    try:
        url = make_url(_hosts_apart(_escaped_userinfo(text)))
    except (ArgumentError, ValueError):
        raise UsageError(
            "the database URL cannot be read: write sqlite:///cronjobs.db or postgresql://user:password@host/name"
        ) from None
    if url.get_backend_name() == "sqlite":
        file = Path(str(url.database)).absolute()
        return Address(URL.create("sqlite+pysqlite", database=str(file)), None)
    if _is_misread(_escaped_userinfo(text)):
        raise UsageError(
            "the database URL has a second @. In the user, password and database name, write @ as %40, "
            "/ as %2F, # as %23, ? as %3F and % as %25"
        )
    in_url = url.query.get("schema")
    # asyncpg has the same option as libpq's sslmode, with the same values, but calls it "ssl".
    ssl = url.query.get("ssl")
    url = url.set(drivername="postgresql+psycopg").difference_update_query([*_NOT_LIBPQ, "ssl"])
    if isinstance(ssl, str) and "sslmode" not in url.query:
        url = url.update_query_dict({"sslmode": {"true": "require", "false": "disable"}.get(ssl.lower(), ssl)})
    return Address(url, schema or (in_url if isinstance(in_url, str) else None))


def _escaped_userinfo(text: str) -> str:
    """Escape each @ in a password, which people forget to do.

    Without the escape, the part of the password after an @ would be read as the host.
    """
    scheme, separator, rest = text.partition("://")
    end = next((place for place, character in enumerate(rest) if character in "/?#"), len(rest))
    userinfo, at, host = rest[:end].rpartition("@")
    return f"{scheme}{separator}{userinfo.replace('@', '%40')}{at}{host}{rest[end:]}"


def _is_misread(text: str) -> bool:
    """Return whether the URL has another @ after the @ that ends the password, so that the first @ may be part of the
    password.

    Without this check, libpq would look up the rest of the password as a host, and errors would show it. Values of
    known options may contain an @.
    """
    userinfo, _, rest = text.partition("://")[2].partition("@")
    place, _, query = rest.partition("?")
    options = (option.partition("=") for option in query.split("&") if "@" in option)
    known = all(masking.is_public_option(name, value) or masking.is_secret_option(name) for name, _, value in options)
    return ":" in userinfo and ("@" in place or not known)


def _hosts_apart(text: str) -> str:
    """Rewrite several hosts, ``user@one:5432,two:5433/name``, for SQLAlchemy: ``user@/name?host=one:5432&host=…``."""
    scheme, separator, rest = text.partition("://")
    place, slash, path = rest.partition("/")
    userinfo, at, hosts = place.rpartition("@")
    if "," not in hosts or "[" in hosts or not slash:
        return text
    name, _, query = path.partition("?")
    listed = "&".join(f"host={host}" for host in hosts.split(","))
    return f"{scheme}{separator}{userinfo}{at}/{name}?{'&'.join(filter(None, (listed, query)))}"
