"""Edit the user's crontab: our block and the lines that cronjobs takes over. Everything else stays byte for byte."""
