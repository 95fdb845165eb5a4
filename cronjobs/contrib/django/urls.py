"""The URL of the pages. Include it before the admin's URL. Staff may see the pages, and superusers may act on jobs."""

from django.urls import re_path  # type: ignore[import-untyped]

from cronjobs.contrib.django.views import pages

urlpatterns = [re_path(r"^(?P<path>.*)$", pages(), name="cronjobs")]
