"""What all pages share: addresses, the frame around a page, badges, tables, forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

from cronjobs.contrib.web.html import Child, Html, document, h, style, together
from cronjobs.contrib.web.security import Visitor
from cronjobs.desk.insight.saying import Times, safe, status_word
from cronjobs.engine.config.settings import Settings

PAGES: Final = {"/": "Overview", "/jobs": "Jobs", "/queues": "Queues", "/hosts": "Hosts"}

# What became of a POST, by the word in the address it leads to: no text in an address is ever shown.
SAID: Final = {
    "retried": "The job is queued again, due now.",
    "cancelled": "The job is cancelled.",
    "asked": "The job is running: it is asked to stop at its runner's next heartbeat.",
    "dismissed": "The job is dismissed: it stays dead, and is no longer reported.",
    "released": "The job is queued again, due now: its runner is gone.",
    "held": "Nothing was changed: the job's runner is alive, or cannot be seen from the host that serves these pages. "
    '"cronjobs jobs release", typed on its host, says more.',
    "unchanged": "Nothing was changed: the job is in another state by now, or locked by somebody.",
    "paused": "It is paused.",
    "resumed": "It goes on; the next tick settles what the pause held back.",
    "not_paused": "It was not paused.",
    "triggered": "A job is enqueued, due now.",
    "acked": "The finding is acknowledged.",
    "unacked": "The finding is no longer acknowledged.",
    "not_acked": "It was not acknowledged.",
    "gone": "That finding is over.",
}


def address(base: str, path: str, /, **query: object) -> str:
    """Of a page below *base*; what is None or "" is left out of the query."""
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    encoded = urlencode(given, quote_via=quote, errors="replace")
    return f"{base}{path}" + (f"?{encoded}" if encoded else "")


@dataclass(frozen=True)
class View:
    """How one page is made. ``visitor`` None: it is a file that stands alone, without links and forms."""

    settings: Settings
    times: Times
    base: str = ""
    visitor: Visitor | None = None
    path: str = "/"
    said: str | None = None
    project: str = ""
    sheet: str = field(default="", repr=False)  # for a file that stands alone

    @property
    def alone(self) -> bool:
        return self.visitor is None

    # --- addresses ----------------------------------------------------------------------------------------------------

    def url(self, path: str, /, **query: object) -> str:
        """*path* is ours and begins with a slash; what comes from rows goes into *query*."""
        return address(self.base, path, **query)

    def link(self, what: Child, path: str, /, **query: object) -> Html:
        """*what*, leading there; in a file that stands alone it leads nowhere."""
        return together(what) if self.alone else h("a", what, href=self.url(path, **query))

    def job(self, job_id: int | None) -> Html | None:
        return None if job_id is None else self.link(f"{job_id}", f"/jobs/{job_id}")

    def schedule(self, name: str | None) -> Html | None:
        return None if name is None else self.link(safe(name, 120), "/schedule", name=name)

    def instant(self, at: datetime | None) -> Html | str:
        if at is None:
            return ""
        told = f"{self.times.clock(at)} {self.times.timezone}"
        return h("time", self.times.ago(at), title=told, datetime=at.isoformat(timespec="seconds"))

    # --- the frame ----------------------------------------------------------------------------------------------------

    def page(self, title: str, *content: Child) -> str:
        whose = " · ".join(safe(part, 60) for part in (self.project, self.settings.environment) if part)
        head = h(
            "head",
            h("meta", charset="utf-8"),
            h("meta", name="viewport", content="width=device-width, initial-scale=1"),
            h("meta", name="color-scheme", content="light dark"),
            h("title", f"{title} · {whose or 'cronjobs'}"),
            style(self.sheet) if self.alone else h("link", rel="stylesheet", href=self.url("/static/style.css")),
            None if self.alone else h("link", rel="icon", href=self.url("/static/icon.svg"), type="image/svg+xml"),
        )
        said = SAID.get(self.said or "")
        body = h(
            "body",
            None if self.alone else h("a", "Skip to the content", class_="skip", href="#content"),
            h("header", h("p", h("strong", "cronjobs"), f" {whose}" if whose else None), self._navigation()),
            h(
                "main",
                h("h1", title),
                h("p", said, class_="said", role="status") if said else None,
                *content,
                id="content",
                tabindex="-1",
            ),
            h("footer", f"{self.times.said}"),
        )
        return document(head, body)

    def _navigation(self) -> Html | None:
        if self.alone:
            return None
        links = [
            h("li", h("a", name, href=self.url(path), aria_current="page" if path == self.path else None))
            for path, name in PAGES.items()
        ]
        return h("nav", h("ul", links), aria_label="Pages")

    # --- forms --------------------------------------------------------------------------------------------------------

    @property
    def acts(self) -> bool:
        return self.visitor is not None and self.visitor.may_act

    def form(self, path: str, button: Child, *children: Child, **fields: str) -> Html | None:
        """A form that does something; None for whom may only look."""
        if not self.acts:
            return None
        hidden = [h("input", type="hidden", name=name, value=value) for name, value in fields.items()]
        inside = (hidden, self.csrf_field, children, h("button", button))
        return h("form", inside, method="post", action=self.url(path), class_="act")

    @property
    def csrf_field(self) -> Html | None:
        if self.visitor is None:
            return None
        return h("input", type="hidden", name="csrf", value=self.visitor.csrf)


# --- pieces -----------------------------------------------------------------------------------------------------------


def badge(word: str, kind: str | None = None) -> Html:
    """A status, in its colour; *kind* is the name of the colour if that is another word."""
    known = (kind or word).replace("_", "-")
    return h("span", word.replace("_", " "), class_=f"badge {known if known.replace('-', '').isalpha() else 'unknown'}")


def button(words: str, about: str) -> Html:
    """What a button says; who only hears it hears what it is *about*, too."""
    return together(words, h("span", f" {about}", class_="unseen"))


def status(column: str, *, dismissed: bool = False) -> Html:
    """A job's status as people read it."""
    return badge("dead, dismissed", "dismissed") if dismissed else badge(status_word(column))


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Child]], *, nothing: str = "none") -> Html:
    """A table; on a narrow screen each row becomes a block, with the header's words before the values."""
    if not rows:
        return h("p", nothing, class_="nothing")
    return h(
        "div",
        h(
            "table",
            h("caption", caption, class_="unseen"),
            h("thead", h("tr", [h("th", name, scope="col") for name in header])),
            h(
                "tbody",
                [
                    h("tr", [h("td", cell, data_label=name) for name, cell in zip(header, row, strict=True)])
                    for row in rows
                ],
            ),
        ),
        class_="wide",
    )


def facts(pairs: Mapping[str, Child]) -> Html:
    """Names and values; those without a value are left out."""
    return h("dl", [(h("dt", name), h("dd", value)) for name, value in pairs.items() if value not in (None, "")])


def text_block(label: str, value: str | None) -> Html | None:
    """Several lines as they are; closed at first, because they may be many."""
    return h("details", h("summary", label), h("pre", value, tabindex="0")) if value else None
