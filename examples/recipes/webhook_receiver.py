"""The receiver of a webhook. Events arrive at least once, and the receiver acts on each one once."""

from __future__ import annotations

from sqlalchemy import Connection, text

TABLE = "CREATE TABLE IF NOT EXISTS received_events (event_id VARCHAR(200) PRIMARY KEY)"


def is_new(connection: Connection, event_id: str) -> bool:
    """Record *event_id*. Return False if it was recorded before.

    Call this in the transaction that does the work for the event. Answer 2xx in both cases, but only after the COMMIT.
    If you answered before and the COMMIT failed, the event would be lost.
    """
    noted = connection.execute(
        text("INSERT INTO received_events (event_id) VALUES (:id) ON CONFLICT DO NOTHING RETURNING event_id"),
        {"id": event_id},
    )
    return noted.first() is not None
