"""The shop's tables and its connection. The tables are in the same database as the jobs."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import BigInteger, Boolean, Column, Date, Engine, Integer, MetaData, Table, Text, create_engine, event

HERE = Path(__file__).resolve().parent
URL = os.environ.get("DATABASE_URL") or f"sqlite:///{HERE / 'shop.db'}"  # the same database as in cronjobs.yaml


def open_database() -> Engine:
    if not URL.startswith("sqlite"):
        return create_engine(URL)
    # SQLite has one write lock. Take it when a transaction begins, and wait up to 10 s for it. SQLite refuses a
    # transaction at once ("database is locked") if it reads first, asks for the lock later, and another transaction has
    # written in between.
    engine = create_engine(URL, connect_args={"isolation_level": None, "timeout": 10})
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


db = open_database()
tables = MetaData()

users = Table(
    "users",
    tables,
    Column("id", Integer, primary_key=True),
    Column("email", Text, nullable=False),
    Column("wants_report", Boolean, nullable=False),
)
invoices = Table(
    "invoices",
    tables,
    Column("id", Integer, primary_key=True),
    Column("user_id", Integer, nullable=False),
    Column("cents", Integer, nullable=False),
    Column("due_on", Date, nullable=False),
    Column("paid_on", Date),
)
reminders = Table(  # one transaction writes a reminder and the job that mails it
    "reminders",
    tables,
    Column("invoice_id", Integer, primary_key=True),
    Column("days_overdue", Integer, primary_key=True),
    Column("asked_on", Date, nullable=False),
)
sessions = Table(
    "sessions",
    tables,
    Column("id", Integer, primary_key=True),
    Column("user_id", Integer, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),  # seconds since 1970
)
cache = Table(
    "cache",
    tables,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
