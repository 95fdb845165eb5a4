"""``db copy``: move a project from SQLite to PostgreSQL; run again, it brings late jobs.

It first closes the old side: ticks there end with a message that names the new one, and the file refuses claims and
occurrences. Then it copies everything from one snapshot, in one transaction of the new side. A killed copy has written
nothing there, and can be started again.
"""
