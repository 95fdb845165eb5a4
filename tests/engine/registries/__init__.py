"""Random job types on random hosts, and ticks that are killed at random points. Does any job run twice or get stuck?"""
