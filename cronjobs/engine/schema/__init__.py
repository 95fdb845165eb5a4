"""Creates and checks the tables, and prints the rights that roles need. No other package uses alembic."""
