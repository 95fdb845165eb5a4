"""The Django app, with tables, commands, tasks and an admin.

A project mounts the web pages with ``path("admin/jobs/", include("cronjobs.contrib.django.urls"))``.
"""
