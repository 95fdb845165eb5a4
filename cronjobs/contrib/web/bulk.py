"""Retry, cancel or dismiss many jobs. First a page says what will happen, then each request does one step.

A step's form has everything that the step needs. The address of the page that answers the form has everything that the
next step needs. If the visitor closes that page, the remaining jobs stay unchanged, and opening the address again
continues the change. The audit trail records what has been done so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from werkzeug.exceptions import BadRequest

from cronjobs import masking
from cronjobs.contrib.web import bounded_search
from cronjobs.contrib.web.bounded_search import Bulk
from cronjobs.contrib.web.project import Doors
from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.searching import search
from cronjobs.desk.insight.stopped_jobs import stopped_jobs
from cronjobs.desk.store.listing import Filter
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.store import operating
from cronjobs.engine.store.meta import require_ours
from cronjobs.engine.store.operating import BATCH, TAKES, Changed, OperatorAction
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import UsageError
from cronjobs.text import clean, one_line, visible

AT_MOST: Final = 2_000  # one request changes at most this many jobs
LONGEST_WHY: Final = 500

# Maps each action to the function that changes the jobs, and to the word for a changed job.
CHANGES: Final[Mapping[str, tuple[Callable[..., Changed], str]]] = {
    "retry": (operating.retry, "retried"),
    "cancel": (operating.cancel, "cancelled"),
    "dismiss": (operating.dismiss, "dismissed"),
}
MEANS: Final = {
    "retry": "Each job is queued again and due now, with all its tries. Its history stays. A job "
    "that was stopped by an unknown effect stays dead until somebody settles that effect.",
    "cancel": "Waiting jobs are cancelled at once and never run. Runners ask running jobs to stop at the next "
    "heartbeat, within a quarter of the lease.",
    "dismiss": "Dismissed jobs stay dead and are no longer reported. You can still retry them.",
}


def verbs_for(wanted: Filter) -> list[str]:
    """Return the actions that can be applied to jobs with the filter's statuses."""
    return [verb for verb in CHANGES if not set(wanted.possible_statuses).isdisjoint(TAKES[verb])]


@dataclass(frozen=True)
class Step:
    """The state of a change to many jobs. The next step continues with ids up to ``below``."""

    verb: str
    typed: str
    upper: int
    as_of: datetime
    below: int
    why: str = ""

    @classmethod
    def read(cls, given: Mapping[str, str], verb: str, now: datetime) -> Step:
        """Parse the fields of a form or an address. Raises BadRequest."""
        if verb not in CHANGES or "q" not in given:
            raise BadRequest("the form does not name an action and jobs")
        upper = _number(given.get("upper"))
        try:
            as_of = datetime.fromisoformat(given.get("as_of", ""))
        except ValueError:
            raise BadRequest("the form's as_of is not an instant") from None
        # The change leaves alone the jobs that died after as_of, because it may already have retried them. With an
        # as_of in the future, it would retry such jobs again and again.
        if as_of.tzinfo is None or as_of > now:
            raise BadRequest("the form's as_of has no time zone, or is in the future")
        below = _number(given.get("below", str(upper)))
        return cls(verb, given["q"], upper, as_of.astimezone(UTC), below, why_of(given))

    @property
    def fields(self) -> dict[str, str]:
        return {
            "q": self.typed,
            "as_of": self.as_of.isoformat(),
            "upper": str(self.upper),
            "below": str(self.below),
        }

    @property
    def query(self) -> dict[str, str]:
        """The query string of the address at which the change continues."""
        return {"verb": self.verb, "all": "1", "why": self.why, **self.fields}

    @property
    def filter(self) -> dict[str, str]:
        """The filter that the audit trail records, which is the same in each step of a change."""
        return {"search": self.typed, "up_to": str(self.upper), "as_of": self.as_of.isoformat()}

    def bulk(self, times: Times) -> Bulk:
        """Return the change for this step's search. Raises UsageError if the search cannot be parsed.

        A span in ``since:`` counts back from when the change began, so that all steps choose from the same jobs.
        """
        if visible(masking.hide(self.typed)) != self.typed:
            raise UsageError("this search contains a secret or a control character, which pages never repeat")
        return Bulk(self.verb, search(self.typed).wanted(Times(self.as_of, times.timezone)), self.upper, self.as_of)


def why_of(form: Mapping[str, str]) -> str:
    """Return the reason that the visitor gave, or ""."""
    return one_line(clean(form.get("why", "").strip()), LONGEST_WHY)


def _number(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 2**63):
        raise BadRequest("the form has a number that cannot be read")
    return int(text)


def do_step(doors: Doors, settings: Settings, actor: str, host: str, given: Mapping[str, str], verb: str) -> Step:
    """Change at most AT_MOST jobs, in short transactions. Return the next step."""
    with doors.read() as connection:
        require_ours(connection, settings)
        times = Times(database_now(connection), settings.timezone)
        step = Step.read(given, verb, times.now)
        chosen = bounded_search.choose_some(connection, step.bulk(times), step.below, AT_MOST)
    act = OperatorAction(verb, actor, host, step.why or None, step.filter, step.as_of)
    for begin in range(0, len(chosen.ids), BATCH):
        batch = chosen.ids[begin : begin + BATCH]
        with doors.write() as connection:
            require_ours(connection, settings)
            stopped = stopped_jobs(connection, batch) if verb == "retry" else {}
            CHANGES[verb][0](connection, [each for each in batch if each not in stopped], act)
    return replace(step, below=chosen.below)
