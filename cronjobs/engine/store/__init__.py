"""All SQL about jobs, one function per statement. Each function takes a connection that is already in a transaction."""
