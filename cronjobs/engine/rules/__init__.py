"""Pure decisions that several parts of the engine share: no clock, no SQL, no I/O."""
