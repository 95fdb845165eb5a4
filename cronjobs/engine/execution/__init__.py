"""Run one attempt: turn a claimed job into an Outcome."""
