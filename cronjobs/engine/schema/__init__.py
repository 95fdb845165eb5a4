"""Create and check the tables, and print the rights that database roles need. No other package uses alembic."""
