"""The Django app: tables, commands, tasks, admin; ``path("admin/jobs/", include("cronjobs.contrib.django.urls"))``."""
