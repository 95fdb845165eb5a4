"""Decisions that several rooms share, pure: no clock, no SQL, no I/O."""
