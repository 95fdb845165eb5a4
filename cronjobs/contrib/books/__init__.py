"""``cronjobs books``: check that each occurrence in a period has exactly one result."""
