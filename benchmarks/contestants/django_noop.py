"""The task of on_django.py. It is in a separate module, because the worker imports it by name."""

from __future__ import annotations

import seen
from django_tasks import task  # type: ignore[import-not-found,unused-ignore]


@task()  # type: ignore[untyped-decorator,unused-ignore]
def noop(n: int) -> None:
    seen.noop(n)
