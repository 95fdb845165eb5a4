"""The Django app, with tables, commands, tasks and an admin.

The pages are mounted with ``path("admin/jobs/", include("cronjobs.contrib.django.urls"))``.
"""
