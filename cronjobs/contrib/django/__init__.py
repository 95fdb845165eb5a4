"""cronjobs in Django: the pages as a view. ``path("admin/jobs/", include("cronjobs.contrib.django.urls"))``."""
