"""The code that a tick runs, from cron's wake-up to its exit, and the functions that apps call.

It does not import the desk, and calls extras only if they are installed.
"""
