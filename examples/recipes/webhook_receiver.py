"""The other end of a webhook: what makes "at least once" into "once"."""

from __future__ import annotations

from sqlalchemy import Connection, text

TABLE = "CREATE TABLE IF NOT EXISTS received_events (event_id VARCHAR(200) PRIMARY KEY)"


def is_new(connection: Connection, event_id: str) -> bool:
    """Note *event_id*; False if it is there already. In the same transaction as what the event leads to.

    Answer 2xx in both cases, and only after the COMMIT: else the sender tries again.
    """
    noted = connection.execute(
        text("INSERT INTO received_events (event_id) VALUES (:id) ON CONFLICT DO NOTHING RETURNING event_id"),
        {"id": event_id},
    )
    return noted.first() is not None
