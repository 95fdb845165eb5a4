"""What every command shares: its settings and database, its output, its faults, and how its process ends."""
