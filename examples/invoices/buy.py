"""Customers for trying the example. Each customer places an order and pays it, through the app's own API.

    python buy.py 3                                 three of the book
    python buy.py 1 --item signed                   the signed copy, which is sold out
    python buy.py 1 --email nobody@example.com      an address that does not exist

The app runs in this process, without a web server. ``uvicorn app:app`` would serve the same app.
"""

from __future__ import annotations

import argparse
import asyncio

import httpx
from app import app
from shop import Base, Item, db
from sqlalchemy import select
from sqlalchemy.orm import Session


def open_shop() -> None:
    """Create the shop's tables and its items."""
    Base.metadata.create_all(db)
    with Session(db) as session, session.begin():
        if not session.scalar(select(Item.name).limit(1)):
            session.add_all([Item(name="book", cents=1990, stock=1_000_000), Item(name="signed", cents=4990, stock=0)])


async def buy(count: int, item: str, email: str | None, every_s: float) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        for number in range(1, count + 1):
            to = email or f"customer{number}@example.com"
            placed = await client.post("/orders", json={"email": to, "item": item})
            order = placed.raise_for_status().json()
            paid = await client.post(f"/orders/{order['id']}/pay")
            answer = paid.json()
            print(f"order {order['id']} for {to}: {answer.get('status') or answer['detail']}")
            await asyncio.sleep(every_s)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("count", type=int)
    options.add_argument("--item", default="book")
    options.add_argument("--email")
    options.add_argument("--every", type=float, default=0.0, metavar="SECONDS", help="from one customer to the next")
    chosen = options.parse_args()
    open_shop()
    asyncio.run(buy(chosen.count, chosen.item, chosen.email, chosen.every))
