"""Check stored payloads against this process's handlers before a deploy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cronjobs.desk.store.payloads import Chunk, StoredPayload, chunk_after, last_id
from cronjobs.desk.store.reading import only_reading
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.payload import payload_fault
from cronjobs.engine.store.meta import MOVED, Meta, read_meta, require_revision
from cronjobs.errors import MovedDatabase, OtherProject, SchemaTooOld

MOST_GROUPS: Final = 500  # count at most this many kinds of misfits separately
IDS_NAMED: Final = 5
_INDEX: Final = re.compile(r"\[[0-9]+\]")
_UNKNOWN: Final = "no handler or command is registered under this name"
_MORE: Final = "does not fit, for more reasons than are listed"


@dataclass
class MisfitGroup:
    """Jobs of one type whose payloads have the same fault. ``example``: the first payload's fault, with its value."""

    job_type: str
    example: str
    unknown_type: bool = False
    by_status: Counter[str] = field(default_factory=Counter)
    ids: list[int] = field(default_factory=list)  # the ids of the first few of these jobs

    @property
    def jobs(self) -> int:
        return self.by_status.total()

    @property
    def remedy(self) -> str:
        if self.unknown_type:
            return "keep a handler under this name until these jobs are done"
        return "let the handler take both forms until these jobs are done"


@dataclass
class PayloadReview:
    """The review's result so far. ``checked`` payloads were read, and ``misfits`` of them do not fit."""

    known: JobTypes
    checked: int = 0
    misfits: int = 0
    _groups: dict[tuple[str, str, str], MisfitGroup] = field(default_factory=dict)

    @property
    def groups(self) -> list[MisfitGroup]:
        """Return the groups, largest first."""
        return sorted(self._groups.values(), key=lambda group: (-group.jobs, group.job_type, group.example))

    def add(self, row: StoredPayload) -> None:
        self.checked += 1
        faults = dict(self._faults(row))
        self.misfits += bool(faults)
        for (where, what), example in faults.items():
            key = (str(row.job_type), where, what)
            if key not in self._groups and len(self._groups) >= MOST_GROUPS:
                key, example = ("", "", ""), _MORE
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = MisfitGroup(key[0] or "other job types", example, what == _UNKNOWN)
            group.by_status[row.status] += 1
            if len(group.ids) < IDS_NAMED:
                group.ids.append(row.id)

    def _faults(self, row: StoredPayload) -> Iterator[tuple[tuple[str, str], str]]:
        """Yield a key and a text for each fault.

        The text contains the payload's value. The key does not, so that it groups equal faults.
        """
        job_type = self.known.types.get(row.job_type)
        if job_type is None:
            yield ("", _UNKNOWN), _UNKNOWN
            return
        registration = job_type.registration
        fault = payload_fault(row.payload)
        if fault is None and registration is not None:
            fault = registration.bind_names(row.payload)
        if fault is not None:
            yield ("", fault), fault
        elif registration is not None:
            for misfit in registration.decoded(row.payload)[1].found:
                yield (_INDEX.sub("[]", misfit.where), misfit.what), str(misfit)


def review(database: Database, project: str, known: JobTypes) -> Iterator[PayloadReview]:
    """Compare all payloads in *database* with the handlers. Yield the growing review after each chunk. Write nothing.

    Each chunk has its own transaction, so no snapshot stays open while millions of rows are read. Jobs that are
    enqueued during the review are not checked. Tables of an older schema revision are accepted. Raises OtherProject,
    MovedDatabase or DatabaseError.
    """
    done = PayloadReview(known)
    with database.read() as connection, only_reading(connection):
        found = read_meta(connection)
        _require_ours(found, project)
        last = last_id(connection)
    yield done
    chunk: Chunk | None = Chunk((), 0)
    while chunk is not None:
        with database.read() as connection, only_reading(connection):
            chunk = chunk_after(connection, chunk.after, last)
        if chunk is not None:
            for row in chunk.rows:
                done.add(row)
            yield done


def _require_ours(found: Meta, project: str) -> None:
    """Raise OtherProject or MovedDatabase. The environment may differ: CI checks production before deploys."""
    # The review runs before the migration. Every revision has the columns that the review reads.
    with suppress(SchemaTooOld):
        require_revision(found.schema_revision, found.oldest_code)
    if found.environment.startswith(MOVED):
        raise MovedDatabase(found.environment.removeprefix(MOVED))
    if found.project not in ("", project):
        raise OtherProject(theirs=found.project, ours=project)
