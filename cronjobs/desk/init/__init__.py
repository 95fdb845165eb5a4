"""``cronjobs init``: read the surroundings, plan the files, and write them."""
