"""The names that you need to write an extra of your own: a module with ``found()``, with a ``hook``, or with both.

``extras:`` in cronjobs.yaml names the module, as docs/how-to/alerts.md#an-extra-of-your-own explains.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cronjobs.desk.insight.finding import Finding, Severity
    from cronjobs.desk.insight.findings_of_extras import Findings
    from cronjobs.engine.tick.extras import Hook, HookContext, RunSummary

__all__ = ["Finding", "Findings", "Hook", "HookContext", "RunSummary", "Severity"]

_HOMES = {
    "HookContext": "engine.tick.extras",
    "Finding": "desk.insight.finding",
    "Findings": "desk.insight.findings_of_extras",
    "Hook": "engine.tick.extras",
    "RunSummary": "engine.tick.extras",
    "Severity": "desk.insight.finding",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"cronjobs.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
