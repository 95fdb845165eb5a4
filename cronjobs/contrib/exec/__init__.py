"""``cronjobs exec``: runs a crontab's line as cron would, and records the run beside it."""

RECORDED = b"+"  # what the recorder answers when the end is written
