"""The ``run-due`` command without its tick: its options, and what it prints, mails, logs and returns."""
