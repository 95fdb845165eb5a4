"""SQL that only commands, pages and extras need: lists, counts and traces of what happened.

A million finished jobs must not slow these commands down. So every statement uses an index. Some have a shape that
makes the planner choose the index. A test checks the query plans on both databases.
"""
