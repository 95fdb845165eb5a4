"""Open connections, let writers take turns, map database errors to exceptions, and define the tables."""
