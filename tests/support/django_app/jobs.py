"""Handlers of the app. They are found in the same way as its tasks."""

from __future__ import annotations

from cronjobs import job


@job("django_app.greet")
def greet(name: str = "you") -> str:
    return f"hello {name}"
