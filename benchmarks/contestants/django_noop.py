"""The task of on_django.py, where its worker imports it by name."""

from __future__ import annotations

import seen
from django_tasks import task  # type: ignore[import-not-found]


@task()  # type: ignore[untyped-decorator]
def noop(n: int) -> None:
    seen.noop(n)
