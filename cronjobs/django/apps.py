"""``INSTALLED_APPS += ["cronjobs.django"]``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.apps import AppConfig, apps  # type: ignore[import-untyped]
from django.utils.module_loading import module_has_submodule  # type: ignore[import-untyped]

from cronjobs.config.django_project import APP
from cronjobs.jobs.job_types import also_import

MODULES: Final = ("jobs", "tasks")  # of each app


class CronjobsConfig(AppConfig):  # type: ignore[misc]
    """Tables by ``migrate``, ``manage.py cronjobs``, the admin; handlers are found in the apps' jobs and tasks."""

    name = APP
    label = "cronjobs"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from cronjobs.django import checks  # noqa: F401  it registers them

        also_import(modules_of_apps)


def modules_of_apps() -> Iterator[str]:
    """The modules of the installed apps that may have handlers."""
    if not apps.is_installed(APP):
        return
    for app in apps.get_app_configs():
        for name in MODULES:
            if app.name != APP and module_has_submodule(app.module, name):
                yield f"{app.name}.{name}"
