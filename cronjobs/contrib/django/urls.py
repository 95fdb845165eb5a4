"""The URL of the pages. Include it before the admin's URL.

The admin's permissions decide who may see the pages and who may act.
"""

from django.urls import re_path  # type: ignore[import-untyped]

from cronjobs.contrib.django.views import pages

urlpatterns = [re_path(r"^(?P<path>.*)$", pages(), name="cronjobs")]
