"""cronjobs.yaml and the environment become frozen Settings; mistakes come as file:line:column."""
