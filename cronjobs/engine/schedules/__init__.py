"""Apply schedules' definitions, and decide what becomes of each occurrence."""
