"""Decisions that several rooms of the desk share. Pure."""
