"""${message}

Only expand: code of the previous version goes on running on this schema while the new one arrives. Names are
unqualified, the search_path is pinned. Then: SCHEMA_REVISION in cronjobs/engine/database/tables.py.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}

OLDEST_CODE = "0012"  # the oldest revision whose code may run on the database after this migration


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
    op.execute(
        f"UPDATE cronjobs_meta SET schema_revision = '{revision}', oldest_code = '{OLDEST_CODE}' WHERE id = 1"  # noqa: S608
    )


def downgrade() -> None:
    raise RuntimeError("cronjobs' migrations only expand: there is nothing to downgrade")
