"""Random job types on random hosts, ticks killed at random points: is anything run twice, or held up by it?"""
