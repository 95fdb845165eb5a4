"""Decisions that several parts of the engine share. They are pure: they use no clock, no SQL and no I/O."""
