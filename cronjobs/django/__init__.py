"""cronjobs in a Django project: the pages as a view. ``path("admin/jobs/", include("cronjobs.django.urls"))``."""
