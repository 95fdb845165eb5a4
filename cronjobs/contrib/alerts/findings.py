"""Findings about crossed thresholds of ``alerts:`` and about channels that do not deliver."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cronjobs.contrib.alerts.statements import UndeliveredChannel, died_or_failed, open_episodes, undelivered
from cronjobs.desk.insight.finding import Finding, Severity, typed
from cronjobs.desk.insight.findings_of_extras import Findings
from cronjobs.engine.config.settings import AlertThreshold, Settings
from cronjobs.model import duration_text

COUNTED_BEYOND: Final = 1000  # stop counting at this number above a threshold


def found(connection: Connection, settings: Settings, _now: datetime) -> Findings:
    if settings.alerts is None:
        return Findings()
    crossed = [each for of in settings.alerts.thresholds.values() if (each := _crossed(connection, of)) is not None]
    # A count does not show when it crossed its threshold, so the finding begins at the first look that sees it crossed.
    began = {each.finding: each.began_at for each in open_episodes(connection)} if crossed else {}
    waiting = undelivered(connection, settings.alerts.channels)
    return Findings([*(replace(each, since=began.get(each.key)) for each in crossed), *map(_undelivered, waiting)])


def _crossed(connection: Connection, threshold: AlertThreshold) -> Finding | None:
    most = threshold.more_than + COUNTED_BEYOND
    count = died_or_failed(connection, threshold.of, threshold.within, threshold.job_type, most)
    if count <= threshold.more_than:
        return None
    what, within = ("jobs died" if threshold.of == "dead" else "attempts failed"), duration_text(threshold.within)
    of = f" of {threshold.job_type}" if threshold.job_type else ""
    text = f"{count:,} {what}{of} within {within}; the threshold is {threshold.more_than:,}"
    command = f"cronjobs history --since {within}"
    return Finding("threshold", text, Severity(threshold.severity), command=command, subject=threshold.name)


def _undelivered(each: UndeliveredChannel) -> Finding:
    waiting = "1 message waits" if each.messages == 1 else f"{each.messages:,} messages wait"
    text = f'channel "{each.channel}" cannot deliver alerts ({waiting}): {each.error}'
    command = typed("cronjobs alerts test", each.channel)
    return Finding("alert", text, since=each.since, command=command, subject=each.channel)
