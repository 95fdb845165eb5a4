"""``cronjobs demo``: the whole thing at work in a few seconds; all that it does, it does by commands."""
