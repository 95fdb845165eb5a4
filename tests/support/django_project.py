"""A Django project with the app, for one test. It uses the test's database, and its modules are imported again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from django.test import override_settings  # type: ignore[import-untyped]

from cronjobs.engine.jobs import job_types, registry
from support.djangos import configured

APPS = ["cronjobs.contrib.django", "support.django_app"]
ADMIN = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages"]
BACKEND = "cronjobs.contrib.django.tasks.CronjobsBackend"
TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"]}}
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
OWN = ("support.django_app.tasks", "support.django_app.jobs")


@contextmanager
def django_project(url: str, *, alias: str = "default", admin: bool = False, **settings: Any) -> Iterator[str]:
    """Return the alias of the jobs database. On PostgreSQL, it uses the role that the URL names."""
    installed = [*(ADMIN if admin else []), *APPS]
    given: dict[str, Any] = {"INSTALLED_APPS": installed, "TASKS": TASKS, "TEMPLATES": TEMPLATES, **settings}
    with patch.dict(registry._registered), patch.object(job_types, "_finders", []), _imported_anew():
        for name in configured(url, alias, by_runner=True):
            with override_settings(**given):
                yield name


@contextmanager
def _imported_anew() -> Iterator[None]:
    from cronjobs.contrib.django.task_jobs import KNOWN

    for name in OWN:
        sys.modules.pop(name, None)
    with patch.dict(KNOWN):
        yield
