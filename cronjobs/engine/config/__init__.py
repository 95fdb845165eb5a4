"""Read cronjobs.yaml and the environment into frozen Settings. Each mistake is reported with file:line:column."""
