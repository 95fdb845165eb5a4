"""The user's crontab: one marked block in it, and not a byte of the rest touched."""
