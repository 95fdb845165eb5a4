"""``cronjobs exec``: run a crontab line as cron would, and record the run."""

RECORDED = b"+"  # the recorder's answer once the outcome is written
