"""The user's crontab: we edit one marked block, and no byte of the rest."""
