"""The pages for ``include()``, before the admin's path: staff sees them, superusers act."""

from django.urls import re_path  # type: ignore[import-untyped]

from cronjobs.contrib.django.views import pages

urlpatterns = [re_path(r"^(?P<path>.*)$", pages(), name="cronjobs")]
