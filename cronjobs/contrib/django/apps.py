"""The app's configuration. Django finds the app by ``INSTALLED_APPS += ["cronjobs.contrib.django"]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Final

from django.apps import AppConfig, apps  # type: ignore[import-untyped]
from django.utils.module_loading import module_has_submodule  # type: ignore[import-untyped]

from cronjobs.engine.config.django_project import APP
from cronjobs.engine.jobs.around import around_attempts
from cronjobs.engine.jobs.job_types import also_import

MODULES: Final = ("jobs", "tasks")  # the modules of each app that may have handlers


class CronjobsConfig(AppConfig):
    """Provides the tables (created by ``migrate``), the command ``manage.py cronjobs`` and the admin.

    Ticks import handlers from the modules ``jobs`` and ``tasks`` of each installed app.
    """

    name = APP
    label = "cronjobs"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from cronjobs.contrib.django import checks  # noqa: F401  the import registers the checks
        from cronjobs.contrib.django.clean import CleanConnections

        around_attempts(CleanConnections)
        also_import(modules_of_apps)


def modules_of_apps() -> Iterator[str]:
    """Yield the names of the installed apps' modules that may have handlers."""
    if not apps.is_installed(APP):
        return
    for app in apps.get_app_configs():
        for name in MODULES:
            if app.name != APP and module_has_submodule(app.module, name):
                yield f"{app.name}.{name}"


def import_modules_of_apps() -> None:
    """Import the apps' modules in a process that is not a tick.

    Skip modules that fail to import: ticks report the errors.
    """
    for module in modules_of_apps():
        with suppress(Exception):
            import_module(module)
