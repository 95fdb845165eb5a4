"""The ``run-due`` command around its tick: its options, and what it prints, mails, logs and returns."""
