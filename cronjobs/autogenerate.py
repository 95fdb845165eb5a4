"""For the ``env.py`` of your own alembic migrations: prevents autogenerate from dropping the tables of cronjobs.

::

    from cronjobs.autogenerate import include_object
    context.configure(connection=connection, target_metadata=target_metadata, include_object=include_object)

This module does not import alembic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cronjobs.engine.database.tables import VERSION_TABLE, metadata
from cronjobs.engine.schema.drift import SQLITE_VIEWS, VIEWS

PREFIX: Final = "cronjobs_"

OURS: Final = frozenset({*metadata.tables, VERSION_TABLE, *VIEWS, *SQLITE_VIEWS})


def include_object(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
    """Return whether autogenerate should compare *thing*, in any schema. Use it as alembic's ``include_object``.

    Autogenerate then leaves our tables alone, even if your metadata describes them for queries. If your metadata does
    not have a table whose name begins with ``cronjobs_``, autogenerate leaves that table alone, too, because a newer
    cronjobs may have created it. To add a rule of your own, combine both rules in one function:
    ``include_object(*all_five) and …``.
    """
    if kind != "table" or name is None:
        return True
    unknown = reflected and compare_to is None
    return name not in OURS and not (unknown and name.startswith(PREFIX))


def include_name(name: str | None, kind: str, _parent_names: Mapping[str, Any]) -> bool:
    """Like ``include_object``, but checks by name only. Use it as alembic's ``include_name``.

    With this function, autogenerate does not even read our tables. Use it together with ``include_object``, since only
    ``include_object`` also recognises the tables of a newer version of cronjobs.
    """
    return kind != "table" or name not in OURS
