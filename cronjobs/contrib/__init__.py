"""The extras, each in its own folder.

An extra never imports another extra. The engine and the desk load extras by module name.
"""
