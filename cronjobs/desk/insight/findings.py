"""What is wrong, from the facts of ``health``: a sentence each, how bad, since when, and what to type. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from cronjobs.desk.insight.finding import Ack, Finding, Severity
from cronjobs.desk.insight.findings_of_schedules import schedule_findings
from cronjobs.desk.insight.findings_of_ticks import tick_findings
from cronjobs.desk.insight.findings_of_work import work_findings
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.same_cause import same_cause
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.store.acks import StoredAck

__all__ = ["Ack", "Finding", "Severity", "judge", "troubles"]


def judge(health: Health, settings: Settings, but: Collection[str] = ()) -> list[Finding]:
    """What is wrong, the worst first, each with its ack, if that covers it as it is now; empty when all is well.

    Without findings of the kinds in *but*, which the caller reports otherwise, or not: they stand for no other one.
    A file that is broken, or not at hand, does not show that the project is another one, or a job type unknown.
    """
    if settings.broken:
        project, environment = settings.project or health.project, settings.environment or health.environment
        settings = replace(settings, project=project, environment=environment)
        if not health.judged_by_ticks:
            health = replace(health, unresolved={}, unknown_schedules={})
    found = [acknowledged(finding, health.acks) for finding in troubles(health, settings, but)]
    return sorted(found, key=lambda finding: (finding.ack is not None, finding.severity.rank))


def acknowledged(finding: Finding, acks: Mapping[str, StoredAck]) -> Finding:
    """*finding* with its ack, unless a row came since, or it became worse."""
    stored = acks.get(finding.key)
    if stored is None or not set(finding.rows) <= set(stored.rows):
        return finding
    if stored.severity not in set(Severity) or finding.severity.rank < Severity(stored.severity).rank:
        return finding
    return replace(finding, ack=Ack(stored.by, stored.why, stored.acked_at, stored.until))


def troubles(health: Health, settings: Settings, but: Collection[str] = ()) -> list[Finding]:
    """What is wrong, acknowledged or not, each cause once; empty when all is well."""
    same = same_cause(health, settings)
    if "config" in but:
        same = replace(same, hosts={}, entries={})
    found = [
        *tick_findings(health, settings, same),
        *schedule_findings(health, settings, same),
        *work_findings(health, settings, same),
        *health.told.findings,
    ]
    return [finding for finding in found if finding.kind not in but]
