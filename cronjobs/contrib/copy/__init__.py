"""``db copy``: take a project from SQLite to PostgreSQL, whole, once, and again for what came late.

The old side is closed first: its ticks end with a message that names the new one, and the file itself refuses claims
and occurrences. Then everything is copied in one transaction of the new side, from one snapshot of the old. So a copy
that is killed has written nothing there, and can be started again.
"""
