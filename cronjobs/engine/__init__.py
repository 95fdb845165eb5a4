"""The code that a tick runs from cron's wake-up to its exit, and the calls that an app uses.

It imports nothing of the desk, and calls extras through doors.
"""
