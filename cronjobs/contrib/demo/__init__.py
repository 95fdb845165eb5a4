"""``cronjobs demo``: show jobs, a retry, a death and a schedule in a few seconds, by running real commands."""
