"""The pages for ``include()``, placed before the admin's URL: staff may see them, superusers may act."""

from django.urls import re_path  # type: ignore[import-untyped]

from cronjobs.contrib.django.views import pages

urlpatterns = [re_path(r"^(?P<path>.*)$", pages(), name="cronjobs")]
