"""For the ``env.py`` of your own alembic: keep autogenerate from dropping the tables of cronjobs.

::

    from cronjobs.autogenerate import include_object
    context.configure(connection=connection, target_metadata=target_metadata, include_object=include_object)

This module imports nothing of alembic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cronjobs.engine.database.tables import VERSION_TABLE, metadata
from cronjobs.engine.schema.drift import SQLITE_VIEWS, VIEWS

PREFIX: Final = "cronjobs_"

OURS: Final = frozenset({*metadata.tables, VERSION_TABLE, *VIEWS, *SQLITE_VIEWS})


def include_object(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
    """Whether autogenerate may look at *thing*: alembic's ``include_object``, for tables in any schema.

    Our tables are left alone, even if your metadata describes them for queries; so is a table in the database that
    begins with ``cronjobs_`` and is not in your metadata, since a newer cronjobs may have made it. To add a rule of
    your own, combine both: ``include_object(*all_five) and …``.
    """
    if kind != "table" or name is None:
        return True
    unknown = reflected and compare_to is None
    return name not in OURS and not (unknown and name.startswith(PREFIX))


def include_name(name: str | None, kind: str, _parent_names: Mapping[str, Any]) -> bool:
    """The same by name alone: alembic's ``include_name``, which keeps it from reading our tables. Use both together.

    Alone it protects only tables of this version; only ``include_object`` tells a newer version's table from yours.
    """
    return kind != "table" or name not in OURS
