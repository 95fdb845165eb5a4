"""What a tick needs from cron's wake-up to its exit, and what an app calls.

It imports nothing of the desk, and calls extras through doors.
"""
