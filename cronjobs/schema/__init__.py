"""Create, check, grant and copy the tables; the only user of alembic."""
