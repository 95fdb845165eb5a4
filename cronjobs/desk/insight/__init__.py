"""Answers about the state of things: check, health, explain."""
