"""The commands and views that people use every day."""
