"""Create and check the tables, and print the rights that roles need. No other package uses alembic."""
