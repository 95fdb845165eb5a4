"""The template tag with which the admin's index links to the pages."""

from __future__ import annotations

from typing import Any

from django import template  # type: ignore[import-untyped]
from django.urls import NoReverseMatch, reverse  # type: ignore[import-untyped]

from cronjobs.contrib.django.views import may_view_jobs, resolved

register = template.Library()


@register.simple_tag(takes_context=True)
def address_of_pages(context: Any) -> str:
    """Return the address of the pages, or "" if they have none, or if the request's user may not see them."""
    request = context.request  # not context["request"], which needs a context processor
    try:
        address = str(reverse("cronjobs", kwargs={"path": ""}))
    except NoReverseMatch:
        return ""
    # The view has the project's own rule, unless a decorator without functools.wraps hides it.
    may_see = getattr(resolved(address, request).func, "may_see", may_view_jobs)
    return address if may_see(request) else ""
