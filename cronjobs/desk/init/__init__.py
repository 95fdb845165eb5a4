"""What ``cronjobs init`` finds in a folder, what it makes of that, and how it is written."""
