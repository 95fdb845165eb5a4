"""What every command shares: its settings and database, what it prints, its faults, and how its process ends."""
