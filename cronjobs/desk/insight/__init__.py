"""Judge and explain the system's state: check, health, explain."""
