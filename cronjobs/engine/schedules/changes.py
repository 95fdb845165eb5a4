"""Compare the schedules and queue caps of a file with those in the database, and plan the changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.schedules.definition import definition
from cronjobs.engine.schedules.planning import TIMING
from cronjobs.engine.store.schedules import StoredSchedule


@dataclass(frozen=True)
class SyncPlan:
    """The changes that would apply a file, as names of schedules.

    ``refused`` says why a person must confirm the changes first, or is None. ``cap`` lists new and changed queue caps,
    and ``uncap`` the queues whose cap is removed.
    """

    add: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()  # pairs of old name and new name
    refused: str | None = None
    retimed: frozenset[str] = field(default_factory=frozenset)
    cap: tuple[Cap, ...] = ()
    uncap: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.add or self.change or self.remove or self.rename or self.cap or self.uncap)

    @property
    def detail(self) -> dict[str, Any]:
        """The changes as JSON, for the audit trail and the log."""
        detail = {
            "add": list(self.add),
            "change": list(self.change),
            "remove": list(self.remove),
            "rename": [f"{old} → {new}" for old, new in self.rename],
        }
        if changed := [*map(str, self.cap), *(f"{name}: no cap" for name in self.uncap)]:
            detail["queues"] = changed
        return detail


def compare(settings: Settings, stored: Iterable[StoredSchedule], caps: Mapping[str, Cap]) -> SyncPlan:
    """Compare a file's definitions with those of *stored*, and its caps with *caps*. A broken entry of the file changes
    nothing.

    The plan is refused if it would retire more than half of the active schedules, and at least three. The plan is also
    refused if the file has no schedules at all and would retire any. Without this, a file that was truncated or
    mounted empty would silently stop every schedule.
    """
    wanted = settings.schedules
    known = {schedule.name: schedule for schedule in stored}
    active = {name: schedule for name, schedule in known.items() if schedule.status == "active"}
    rename = tuple(
        (schedule.renamed_from, name)
        for name, schedule in wanted.items()
        if schedule.renamed_from in active and schedule.renamed_from not in wanted and name not in known
    )
    for old, new in rename:
        active[new] = active.pop(old)
    add, change, retimed = [], [], set()
    for name, schedule in wanted.items():
        there = active.get(name)
        written = definition(schedule)
        if there is None:
            add.append(name)
        elif there.definition != written:
            change.append(name)
            # A definition that is not a dict is unreadable.
            before = there.definition if isinstance(there.definition, dict) else {}
            if any(before.get(key) != written.get(key) for key in TIMING):
                retimed.add(name)
    remove = tuple(name for name in active if name not in wanted and name not in settings.disabled_schedules)
    refused = None
    if (len(remove) >= 3 and len(remove) * 2 > len(active)) or (remove and not wanted):
        refused = (
            f"the file would retire {len(remove)} of {len(active)} schedules ({', '.join(remove[:5])}"
            f'{", …" if len(remove) > 5 else ""}): if that is intended, run "cronjobs sync --allow-removals"'
        )
    todo = SyncPlan(tuple(add), tuple(change), remove, rename, refused, frozenset(retimed))
    if settings.queues is None:
        return todo
    cap = tuple(cap for name, cap in settings.queues.items() if caps.get(name) != cap)
    kept = settings.queues.keys() | settings.disabled_queues
    return replace(todo, cap=cap, uncap=tuple(name for name in caps if name not in kept))


def renames_without_effect(settings: Settings, stored: Sequence[StoredSchedule]) -> dict[str, str]:
    """Return the schedules that would begin without a history although they have ``renamed_from``, each with the
    reason.

    The result is empty if the file retires no schedule, since then no history is lost.
    """
    plan = compare(settings, stored, {})
    if not plan.remove:
        return {}
    known = {schedule.name: schedule.status for schedule in stored}
    renamed = {new for _, new in plan.rename}
    found = {}
    for name, schedule in settings.schedules.items():
        old = schedule.renamed_from
        if old is None or name in renamed or known.get(name) == "active":
            continue
        why = f'the database has no active schedule "{old}"'
        if known.get(old) == "active":
            why = f'"{old}" is in the file, too' if old in settings.schedules else f'"{name}" is a retired schedule'
        found[name] = f"{why}, so nothing is renamed, and the next tick retires {', '.join(plan.remove)}"
    return found
