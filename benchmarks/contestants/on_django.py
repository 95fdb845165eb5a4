"""django-tasks with its database backend. The measured process is Django's command ``db_worker --batch``.

This file is also the settings module: the environment has DJANGO_SETTINGS_MODULE=on_django.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from verbs import SQLITE_FILE, URL, one_by_one, serve, timed

server = urlsplit(URL)
INSTALLED_APPS = ["django_tasks", "django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": SQLITE_FILE,
        "OPTIONS": {"transaction_mode": "EXCLUSIVE", "init_command": "PRAGMA journal_mode=WAL", "timeout": 30},
    }
    if SQLITE_FILE
    else {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": server.path[1:],
        "USER": server.username,
        "PASSWORD": server.password,
        "HOST": server.hostname,
        "PORT": server.port,
    }
}


def main() -> None:
    import django  # type: ignore[import-untyped]

    django.setup()
    from django.core.management import call_command  # type: ignore[import-untyped]
    from django.db import transaction  # type: ignore[import-untyped]
    from django_noop import noop
    from django_tasks_db.models import DBTaskResult  # type: ignore[import-not-found]

    def many(count: int) -> None:
        with transaction.atomic():
            for n in range(count):
                noop.enqueue(n)

    def fill(count: int) -> None:
        DBTaskResult.objects.all().delete()
        many(count)

    serve(
        setup=lambda: call_command("migrate", verbosity=0),
        fill=fill,
        left=lambda: DBTaskResult.objects.exclude(status="SUCCESSFUL").count(),
        single=one_by_one(noop.enqueue),
        bulk=lambda count: timed(lambda: many(count)),
    )


if __name__ == "__main__":
    main()
