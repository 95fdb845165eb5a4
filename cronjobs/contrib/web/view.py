"""What all pages share: addresses, the request with its visitor, and the messages after an action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from markupsafe import Markup

from cronjobs.contrib.web.security import Visitor
from cronjobs.contrib.web.templating import rendered
from cronjobs.desk.insight.formatting import Times, safe
from cronjobs.desk.insight.stopped_jobs import SETTLE_FIRST
from cronjobs.engine.config.settings import Settings

PAGES: Final = {"/": "Overview", "/jobs": "Jobs", "/types": "Job types", "/queues": "Queues", "/hosts": "Hosts"}

# The messages after a POST. The redirect's address has only a message's key: pages never show text from an address.
SAID: Final = {
    "retried": "The job is queued again and due now.",
    "cancelled": "The job is cancelled.",
    "asked": "The job is running. Its runner asks it to stop at the next heartbeat, within a quarter of the lease.",
    "dismissed": "The job is dismissed: it stays dead and is no longer reported.",
    "released": "The job's runner is gone, so the job is queued again and due now.",
    "held": "Nothing was changed: the job's runner is alive, or the host that serves these pages cannot see the "
    'runner. To find out whether the runner is alive, run "cronjobs jobs release" on the runner\'s host.',
    "unchanged": (
        "Nothing was changed: the job's state has changed in the meantime, or another session has locked the job."
    ),
    "unsettled": f"Nothing was changed: {SETTLE_FIRST}.",
    "paused": "The pause is in force.",
    "resumed": "The pause is over. The next tick settles the occurrences that the pause held back.",
    "not_paused": "There was no pause to end.",
    "triggered": "A job is enqueued and due now.",
    "acked": "The finding is acknowledged.",
    "unacked": "The finding is no longer acknowledged.",
    "not_acked": "The finding was not acknowledged.",
    "gone": "That finding is already over.",
}


def address(base: str, path: str, /, **query: object) -> str:
    """Return the address of a page below *base*. Values that are None or "" are left out of the query."""
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    encoded = urlencode(given, quote_via=quote, errors="replace")
    return f"{base}{path}" + (f"?{encoded}" if encoded else "")


@dataclass(frozen=True)
class View:
    """The request that a page answers. Without a ``visitor``, the page is a standalone file without links and forms."""

    settings: Settings
    times: Times
    base: str = ""
    visitor: Visitor | None = None
    path: str = "/"
    query: Mapping[str, str] = field(default_factory=dict)
    project: str = ""
    # The style sheet of a standalone file. It comes from this package, so the template does not escape it.
    sheet: str = field(default="", repr=False)

    @property
    def alone(self) -> bool:
        return self.visitor is None

    @property
    def acts(self) -> bool:
        return self.visitor is not None and self.visitor.may_act

    @property
    def whose(self) -> str:
        return " · ".join(safe(part, 60) for part in (self.project, self.settings.environment) if part)

    def url(self, path: str, /, **query: object) -> str:
        """Return the address of the page at *path*, which is not encoded. Pass values of rows only in *query*."""
        return address(self.base, path, **query)

    def page(self, template: str, **values: Any) -> str:
        said = SAID.get(self.query.get("said", ""))
        return rendered(template, view=self, pages=PAGES, said=said, sheet=Markup(self.sheet), **values)
