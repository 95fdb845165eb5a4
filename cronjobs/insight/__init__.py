"""Answers about how things stand: check, health, explain."""
