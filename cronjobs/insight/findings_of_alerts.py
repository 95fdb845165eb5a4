"""What crossed a threshold of ``alerts:``, and channels that do not deliver."""

from __future__ import annotations

from collections.abc import Iterator

from cronjobs.insight.finding import Finding, Severity, typed
from cronjobs.insight.health import Health
from cronjobs.model import duration_text


def alert_findings(health: Health) -> Iterator[Finding]:
    for threshold, count in health.crossed:
        what, within = ("jobs died" if threshold.of == "dead" else "attempts failed"), duration_text(threshold.within)
        of = f" of {threshold.job_type}" if threshold.job_type else ""
        text = f"{count:,} {what}{of} within {within}: more than {threshold.more_than:,} is an alarm"
        command = f"cronjobs history --since {within}"
        yield Finding("threshold", text, Severity(threshold.severity), command=command, subject=threshold.name)
    for each in health.undelivered:
        waiting = "1 message waits" if each.messages == 1 else f"{each.messages:,} messages wait"
        text = f'alerts cannot be delivered by channel "{each.channel}", {waiting}: {each.error}'
        command = typed("cronjobs alerts test", each.channel)
        yield Finding("alert", text, since=each.since, command=command, subject=each.channel)
