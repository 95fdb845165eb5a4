"""Opens connections, lets writers take turns, maps database errors to exceptions, and defines the tables."""
