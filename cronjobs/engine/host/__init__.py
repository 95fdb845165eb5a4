"""Facts that only this host knows: its processes, users, files and forks."""
