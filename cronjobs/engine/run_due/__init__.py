"""``run-due`` around its tick: from cron's command line to the exit code, with what it prints, mails and logs."""
