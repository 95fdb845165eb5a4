"""``db copy``: move a project from SQLite to PostgreSQL. A second copy brings over the old side's newer ("late") jobs.

The copy first closes the old side: ticks there end with a message that names the new side, and the file refuses claims
and occurrences. Then the copy reads everything from one snapshot and writes it in one transaction of the new side. A
copy that is killed has written nothing to the new side, and can be started again.
"""
