"""Extras, a folder each. No extra imports another; the engine calls them through doors."""
