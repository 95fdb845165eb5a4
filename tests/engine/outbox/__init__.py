"""``examples/invoices`` under an hour's outage, and under kill -9: the tests' short forms and the long ones."""
