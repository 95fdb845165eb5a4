"""For your own alembic's ``env.py``: keeps autogenerate from dropping the tables of cronjobs.

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
    """Whether autogenerate should compare *thing*. Use it as alembic's ``include_object``, for tables in any schema.

    Our tables are left alone, even if your metadata describes them for queries. So is a table whose name begins with
    ``cronjobs_`` if it is in the database but not in your metadata, because a newer cronjobs may have created it. To
    add a rule of your own, combine the two: ``include_object(*all_five) and …``.
    """
    if kind != "table" or name is None:
        return True
    unknown = reflected and compare_to is None
    return name not in OURS and not (unknown and name.startswith(PREFIX))


def include_name(name: str | None, kind: str, _parent_names: Mapping[str, Any]) -> bool:
    """Like ``include_object``, but checks by name only. Use it as alembic's ``include_name``.

    With this function, our tables are not even read. Use it together with ``include_object``, because only
    ``include_object`` also recognises the tables of a newer version of cronjobs.
    """
    return kind != "table" or name not in OURS
