"""Compute UTC instants from a cron expression and a time zone. No other package uses croniter."""
