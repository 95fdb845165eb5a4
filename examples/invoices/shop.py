"""The shop: its items, its orders, and how an order is paid. Its tables are in the same database as the jobs."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import CheckConstraint, DateTime, Engine, ForeignKey, create_engine, event, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from cronjobs import enqueue

HERE = Path(__file__).resolve().parent
URL = os.environ.get("DATABASE_URL") or f"sqlite:///{HERE / 'shop.db'}"  # the same database as in cronjobs.yaml


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "items"
    __table_args__ = (CheckConstraint("stock >= 0", name="items_are_in_stock"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]
    stock: Mapped[int]


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    item: Mapped[str] = mapped_column(ForeignKey("items.name"))
    cents: Mapped[int]
    status: Mapped[str] = mapped_column(default="NEW")  # PAID after the payment
    paid_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    invoice: Mapped[str | None]  # the name of the invoice's file, when the file exists

    @property
    def number(self) -> str:
        return f"R{self.id:06}"


class NoSuchOrder(Exception):
    pass


def pay(session: Session, order_id: int) -> Order:
    """Mark an order as PAID and enqueue its invoice, both in the caller's transaction."""
    order = session.get(Order, order_id, with_for_update=True)
    if order is None:
        raise NoSuchOrder(f"there is no order {order_id}")
    if order.status != "PAID":
        order.status, order.paid_at = "PAID", datetime.now(UTC)
        enqueue(session, "invoices.issue", {"order_id": order.id}, idempotency_key=("invoice", order.id))
        # If nothing is left in stock, the table's CHECK refuses this update. Then the order and the job above are
        # rolled back.
        session.execute(update(Item).where(Item.name == order.item).values(stock=Item.stock - 1))
    return order


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
