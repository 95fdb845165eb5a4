"""The extras, a folder each. No extra imports another; engine and desk call them by name."""
