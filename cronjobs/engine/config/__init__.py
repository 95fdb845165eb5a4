"""Read cronjobs.yaml and the environment into frozen Settings. Mistakes are reported as file:line:column."""
