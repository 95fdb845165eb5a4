"""A file that others read: there is all of it or none of it, and it is written once."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from cronjobs import Context, job


@job("reports.export", timeout="20s")
def export_report(ctx: Context, day: str) -> dict[str, Any]:
    target = Path(os.environ["EXPORT_FOLDER"]) / f"report-{day}.csv"
    # "again": the whole file takes the place of the whole file, so once more does no harm.
    with ctx.effect(("report-file", day), on_unknown="again") as effect:
        if not effect.done:
            data = report(day)
            write_whole(target, data, f"{ctx.job_id}-{ctx.attempt}")
            effect.result = {"file": target.name, "sha256": hashlib.sha256(data).hexdigest()}
    return effect.result or {"file": target.name}


def report(day: str) -> bytes:
    return f"day,orders\n{day},42\n".encode() * 1000


def write_whole(target: Path, data: bytes, writer: str) -> None:
    """Put *data* where *target* is, in one step that also a power cut leaves whole. *writer* is nobody else's."""
    # In the same folder: a rename from another file system would be a copy. And of this attempt alone: an earlier one
    # may be frozen, and go on writing when it wakes.
    part = target.with_name(f".{target.name}.{writer}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # or the name may reach the disk before the content
    part.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the name itself is an entry of the folder
    finally:
        os.close(folder)
    for left in target.parent.glob(f".{target.name}.*.part"):  # of attempts that were killed
        with suppress(FileNotFoundError):
            left.unlink()
