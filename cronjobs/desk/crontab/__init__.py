"""Edit the user's crontab: our block and the lines that cronjobs takes over; all other bytes stay."""
