"""Create, check and grant the tables; the only user of alembic."""
