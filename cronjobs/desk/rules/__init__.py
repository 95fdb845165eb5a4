"""Rules that several packages of the desk share. The rules are pure functions."""
