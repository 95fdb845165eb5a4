"""Facts that only this machine knows: its processes, users, files and forks."""
