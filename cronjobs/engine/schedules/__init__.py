"""What becomes of a schedule's definition, and of each of its occurrences."""
