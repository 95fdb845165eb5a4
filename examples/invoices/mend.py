"""Correct the address of an order through the app's own API: ``python mend.py 7 ada@example.com``."""

from __future__ import annotations

import asyncio
import sys

import httpx
from app import app


async def mend(order_id: str, email: str) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        mended = await client.put(f"/orders/{order_id}/email", json={"email": email})
    print(f"order {order_id} is for {mended.raise_for_status().json()['email']}")


if __name__ == "__main__":
    asyncio.run(mend(*sys.argv[1:]))
