"""Guards that keep data safe, each taken out once."""
