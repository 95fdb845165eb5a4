"""An old crontab becomes schedules, and is compared with what it did."""
