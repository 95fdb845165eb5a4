"""Campaigns of kill -9, freezes, server restarts and cut connections, from a seed, judged outside the database."""
