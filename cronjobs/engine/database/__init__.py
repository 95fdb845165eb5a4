"""Open connections, make writers take turns, map database errors to exceptions, and define the tables."""
