"""Rules that several packages of the desk share. Pure."""
