"""``cronjobs books``: does each occurrence of a period have its one end?"""
