"""SQL that only commands, pages and extras need: lists, counts and traces of what happened."""
