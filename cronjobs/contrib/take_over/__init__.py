"""Turn an old crontab into schedules, and compare these with what cron did."""
