"""One attempt: from a claimed job to an Outcome."""
