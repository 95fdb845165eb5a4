"""A module for each page: it asks the store, and puts the answer into HTML."""
