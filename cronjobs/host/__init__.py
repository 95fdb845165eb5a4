"""This machine as the others cannot see it: its processes, users, files and forks."""
