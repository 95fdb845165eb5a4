"""The user's crontab: our block in it, the lines that cronjobs takes over, and no byte of the rest changed."""
