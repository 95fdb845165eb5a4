"""All SQL about jobs, one function per statement; each takes a connection that is already in a transaction."""
