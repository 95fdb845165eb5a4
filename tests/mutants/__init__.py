"""The guards that keep data safe. Each is removed once to see that a test fails."""
