"""Convert schedules to JSON and back, so that sync can store and compare them. Also compute a file's fingerprint."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final

from cronjobs.engine.config.settings import ScheduleSettings, Settings
from cronjobs.engine.rules.payload import BadJson

# These fields are timedeltas in ``Settings``. In the JSON they are numbers of seconds, and their names end in "_s".
_SPANS: Final = (
    "every",
    "timeout",
    "catch_up_within",
    "spread",
    "grace",
)
_PLAIN: Final = (
    "job",
    "cron",
    "timezone",
    "payload",
    "queue",
    "priority",
    "max_attempts",
    "catch_up",
    "catch_up_limit",
    "overlap",
    "retry_until",
    "warn_after_failures",
    "secret_keys",
)


def definition(schedule: ScheduleSettings) -> dict[str, Any]:
    """Return everything about *schedule* except its name, as JSON. Equal schedules give equal JSON.

    Unset values are left out. So a key that a later version adds does not change the JSON of definitions without it.
    """
    plain = {name: getattr(schedule, name) for name in _PLAIN}
    spans = {f"{name}_s": _seconds(getattr(schedule, name)) for name in _SPANS}
    return {key: value for key, value in (plain | spans).items() if value is not None}


def schedule_from_definition(name: str, stored: object) -> ScheduleSettings:
    """Rebuild a schedule from *stored*. This is the inverse of ``definition``.

    Another version may have written *stored*. Unknown keys are ignored, and a value that this version cannot represent
    is replaced by the key's default. Raises ValueError if *stored* is not a JSON object.
    """
    if not isinstance(stored, dict):
        raise ValueError(stored.reason if isinstance(stored, BadJson) else "the definition is not a JSON object")
    known: dict[str, Any] = {key: stored[key] for key in _PLAIN if key in stored and _FITS.get(key, _text)(stored[key])}
    spans: dict[str, Any] = {
        key: timedelta(seconds=stored[f"{key}_s"]) for key in _SPANS if _is_span(stored.get(f"{key}_s"))
    }
    return ScheduleSettings(name, **({"job": name} | known | spans))


def fingerprint(settings: Settings) -> str:
    """Return 16 hex digits that differ whenever sync would apply different definitions, caps or disabled names.

    They also change with ``limits:``, because all hosts must have the same limits.
    """
    applied: dict[str, Any] = {
        "schedules": {name: definition(schedule) for name, schedule in settings.schedules.items()},
        "disabled": sorted(settings.disabled_schedules),
    }
    if settings.queues != {} or settings.disabled_queues:
        applied["queues"] = {name: [cap.max_waiting, cap.on_full] for name, cap in (settings.queues or {}).items()}
        applied["disabled_queues"] = None if settings.queues is None else sorted(settings.disabled_queues)
    if settings.limits:
        applied["limits"] = {limit.prefix: [limit.most, limit.each] for limit in settings.limits}
    return sha256(canonical(applied).encode()).hexdigest()[:16]


def canonical(value: Any) -> str:
    """Return the canonical JSON text of *value*, with sorted keys, without spaces, in ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _seconds(span: timedelta | None) -> int | float | None:
    """Return a span in seconds, as an int if possible, so that the JSON does not depend on how the span was
    computed.
    """
    if span is None:
        return None
    return int(span.total_seconds()) if not span.microseconds else span.total_seconds()


def _is_span(seconds: Any) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1e10


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_FITS: Final[dict[str, Callable[[Any], bool]]] = {
    "cron": lambda value: value is None or isinstance(value, str),
    "payload": lambda value: isinstance(value, dict),
    "priority": _whole,
    "max_attempts": lambda value: value is None or _whole(value),
    "catch_up": lambda value: value in ("none", "latest", "all"),
    "catch_up_limit": _whole,
    "overlap": lambda value: value in ("skip", "wait", "allow"),
    "retry_until": lambda value: value in (None, "next_occurrence"),
    "warn_after_failures": lambda value: value is None or _whole(value),
    "secret_keys": lambda value: isinstance(value, list) and all(map(_text, value)),
}
