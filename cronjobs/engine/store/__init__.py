"""The SQL of jobs, schedules and ticks, one function per statement.

Each function takes a connection that is already in a transaction.
"""
