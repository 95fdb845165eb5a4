"""SQL that only commands, pages and extras need: lists, counts and traces of what happened.

A million finished jobs must not slow these commands down. So every statement uses an index. Some statements are written
in an unusual form, so that the planner chooses the index. A test checks the query plans on both databases.
"""
