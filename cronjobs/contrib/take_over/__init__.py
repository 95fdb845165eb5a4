"""Convert an old crontab to schedules, and compare the schedules with cron."""
