"""Seeded campaigns of kill -9, freezes, server restarts and cut connections, judged from outside the database."""
