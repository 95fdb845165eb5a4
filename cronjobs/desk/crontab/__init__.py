"""Edit the user's crontab: our own block, and the lines that cronjobs takes over. All other bytes stay unchanged."""
