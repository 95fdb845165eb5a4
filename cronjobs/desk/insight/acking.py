"""Acknowledge a finding in its present state, or withdraw an acknowledgement.

``findings.acknowledged`` decides which findings an ack covers.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.insight.finding import Finding
from cronjobs.engine.store.acks import StoredAck, delete_ack, put_ack
from cronjobs.engine.store.given_up import KINDS
from cronjobs.engine.store.ticks import record

USUAL: Final = "7d"  # how long an ack holds unless its author sets another time
LONGEST: Final = timedelta(days=366)
CHOICES: Final = {"8h": "8 hours", "1d": "a day", USUAL: "7 days"}  # the durations that the web pages offer


def acknowledge(
    connection: Connection,
    finding: Finding,
    *,
    until: datetime,
    now: datetime,
    by: str | None,
    host: str | None,
    why: str | None,
) -> None:
    """Write an ack for *finding*'s present rows and severity, and record its author in the audit trail.

    If the finding is about work that was given up for good, the audit entry ends the finding (see ``store.given_up``).
    """
    put_ack(connection, StoredAck(finding.key, finding.severity, finding.rows, until, by, why, now))
    detail: dict[str, Any] = {"until": until.isoformat(), "severity": finding.severity, "text": finding.text}
    if finding.kind in KINDS and finding.rows:
        detail["up_to"] = max(map(int, finding.rows))
    record(connection, action="ack", subject=finding.key, actor=by, host=host, why=why, detail=detail, at=now)


def take_ack_back(connection: Connection, key: str, *, by: str | None, host: str | None, why: str | None) -> bool:
    """Delete the ack of the finding *key* and record who deleted it. Return False if there was no ack."""
    there = delete_ack(connection, key)
    if there:
        record(connection, action="unack", subject=key, actor=by, host=host, why=why)
    return there
