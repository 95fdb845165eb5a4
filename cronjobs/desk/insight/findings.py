"""Turn the facts of ``health`` into findings. All functions here are pure."""

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
    """Return the findings, worst first. A finding has the ack that covers it, if any. The list is empty if all is well.

    *but*: kinds to leave out. Findings of these kinds also do not cover other findings.

    If the file here is broken or missing, it proves nothing about the database's owner or about the job types. So the
    result then has no finding that the database belongs to another project, and none about a type that is unknown only
    here.
    """
    if settings.broken:
        project, environment = settings.project or health.project, settings.environment or health.environment
        settings = replace(settings, project=project, environment=environment)
        if not health.judged_by_ticks:
            health = replace(health, waiting=replace(health.waiting, unresolved={}), unknown_schedules={})
    found = [acknowledged(finding, health.acks) for finding in troubles(health, settings, but)]
    return sorted(found, key=lambda finding: (finding.ack is not None, finding.severity.rank))


def acknowledged(finding: Finding, acks: Mapping[str, StoredAck]) -> Finding:
    """Return *finding* with its ack, unless the finding got worse, or got a newer part, after it was acknowledged.

    Rows alone do not show that a part is newer: the same schedule may miss more runs, and a finding may end and return.
    """
    stored = acks.get(finding.key)
    if stored is None or not set(finding.rows) <= set(stored.rows):
        return finding
    if finding.newest_at is not None and finding.newest_at > stored.acked_at:
        return finding
    if stored.severity not in set(Severity) or finding.severity.rank < Severity(stored.severity).rank:
        return finding
    return replace(finding, ack=Ack(stored.by, stored.why, stored.acked_at, stored.until))


def troubles(health: Health, settings: Settings, but: Collection[str] = ()) -> list[Finding]:
    """Return the findings without their acks, one finding for each cause. The list is empty if all is well."""
    same = same_cause(health, settings)
    if "config" in but:
        same = replace(same, hosts={}, entries={})
    found = [
        *tick_findings(health, settings, same),
        *schedule_findings(health, settings, same),
        *work_findings(health, settings.run, same),
        *health.of_extras.findings,
    ]
    return [finding for finding in found if finding.kind not in but]
