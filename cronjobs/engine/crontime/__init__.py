"""Turns cron text and a time zone into UTC instants; the only user of croniter."""
