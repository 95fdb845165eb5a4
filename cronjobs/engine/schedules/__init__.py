"""Applies the definitions of schedules, and decides what happens to each occurrence."""
