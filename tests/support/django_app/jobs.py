"""Handlers of the app, found as its tasks are."""

from __future__ import annotations

from cronjobs import job


@job("django_app.greet")
def greet(name: str = "you") -> str:
    return f"hello {name}"
