"""run-due, from cron's wake-up to exit."""
