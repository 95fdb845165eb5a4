"""Every decision, pure: no clock, no SQL, no I/O."""
