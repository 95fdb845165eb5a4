"""The extras, each in a folder of its own. No extra imports another. The engine and the desk call extras by name."""
