"""Django tasks, one for each way in which a task can end."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import django  # type: ignore[import-untyped]

from cronjobs import GiveUp, Snooze

task: Any = import_module("django.tasks" if django.VERSION >= (6,) else "django_tasks").task

seen: list[Any] = []


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task(takes_context=True, priority=40, queue_name="mail")
def look(context: Any, word: str) -> dict[str, Any]:
    result = context.task_result
    seen.append((context.attempt, result.id, str(result.status), result.args, len(result.errors)))
    return {"word": word, "pair": (1, 2)}


@task
async def wait_for(word: str) -> str:
    return word.upper()


@task
def fail(times: int = 99) -> str:
    seen.append("fail")
    if seen.count("fail") <= times:
        raise ValueError(f"failure {seen.count('fail')}")
    return "at last"


@task
def give_up() -> None:
    raise GiveUp("there is no such order")


@task
def later() -> None:
    raise Snooze("10m")


@task
def unkept() -> object:
    return {1, 2}
