"""``cronjobs exec``: run a crontab line as cron would, and record the run."""

RECORDED = b"+"  # the recorder sends this when it has written the outcome
REFUSED = b"!"  # the recorder sends this, and why, if the configuration cannot be used, which only a person can mend
