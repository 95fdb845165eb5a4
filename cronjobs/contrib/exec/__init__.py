"""``cronjobs exec``: run a crontab line as cron would, and record the run."""

RECORDED = b"+"  # the recorder has written the outcome
REFUSED = b"!"  # the configuration cannot be used, and only a person can mend it; the reason follows
