"""The code that a tick runs from its start to its exit, and the functions that apps call.

It does not import ``cronjobs.desk``, and it calls extras only if they are installed.
"""
