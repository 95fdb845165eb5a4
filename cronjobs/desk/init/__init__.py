"""``cronjobs init``: read the surroundings, plan, write."""
