"""Facts that only this host can find out, about its processes, users, files and forks."""
