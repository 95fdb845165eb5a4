"""Apply the definitions of schedules, and decide what happens to each occurrence."""
