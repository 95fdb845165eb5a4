"""``db copy``: move a project from SQLite to PostgreSQL.

A second copy brings over the jobs that were enqueued on the old side since the first copy ("late" jobs).

The copy first closes the old side. From then on, ticks on the old side end with a message that names the new side, and
triggers in the database file refuse claims and new ledger rows. Then the copy reads everything from one snapshot, and
writes everything in one transaction of the new side. If the copy is killed before that transaction commits, the new
side is unchanged, and the copy can be started again.
"""
