"""Cron text and a time zone become UTC instants; the only user of croniter."""
