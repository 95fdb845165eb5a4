"""The invoice as a PDF. There is a whole file or no file, and a second write gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import os

from reportlab.lib.pagesizes import A4
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from shop import HERE, Order

FOLDER = HERE / "invoices"


def write(order: Order) -> dict[str, str]:
    """Write the invoice of *order*. Return the file's name and hash."""
    content = drawn(order)
    FOLDER.mkdir(exist_ok=True)
    file, unfinished = FOLDER / f"{order.number}.pdf", FOLDER / f".{order.number}.unfinished"
    with unfinished.open("wb") as out:
        out.write(content)
        out.flush()
        # Sync before the rename. Without this, a power cut could leave an empty file under the final name.
        os.fsync(out.fileno())
    unfinished.replace(file)
    folder = os.open(FOLDER, os.O_RDONLY)
    try:
        os.fsync(folder)  # sync the name, too
    finally:
        os.close(folder)
    return {"file": file.name, "sha256": hashlib.sha256(content).hexdigest()}


def drawn(order: Order) -> bytes:
    out = io.BytesIO()
    page = Canvas(out, pagesize=A4, invariant=1)  # with invariant=1, the file has no creation time and no random id
    page.setTitle(f"Invoice {order.number}")
    page.setFont("Helvetica-Bold", 20)
    page.drawString(25 * mm, 260 * mm, f"Invoice {order.number}")
    page.setFont("Helvetica", 11)
    page.drawString(25 * mm, 245 * mm, f"Paid on {order.paid_at:%Y-%m-%d}, with thanks")
    page.line(25 * mm, 228 * mm, 185 * mm, 228 * mm)
    page.drawString(25 * mm, 220 * mm, order.item)
    page.drawRightString(185 * mm, 220 * mm, f"{order.cents / 100:.2f} EUR")
    page.showPage()
    page.save()
    return out.getvalue()
