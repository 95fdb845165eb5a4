"""A file that other programs read. They see the whole file or no file, and the file is written once."""

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
    # Use "again", because it does no harm to write the same whole file a second time.
    with ctx.effect(("report-file", day), on_unknown="again") as effect:
        if not effect.done:
            data = report(day)
            write_whole(target, data, f"{ctx.job_id}-{ctx.attempt}")
            effect.result = {"file": target.name, "sha256": hashlib.sha256(data).hexdigest()}
    return effect.result or {"file": target.name}


def report(day: str) -> bytes:
    return f"day,orders\n{day},42\n".encode() * 1000


def write_whole(target: Path, data: bytes, writer: str) -> None:
    """Replace *target* with *data* in one step, so that even a power cut leaves a whole file.

    *writer* is unique to this attempt.
    """
    # Write a temporary file in the same folder, because a rename from another file system would be a copy. Use a name
    # that only this attempt has, because an earlier attempt may be frozen and continue to write when it wakes.
    part = target.with_name(f".{target.name}.{writer}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # without this, the name may reach the disk before the content
    part.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # also sync the name, which is an entry of the folder
    finally:
        os.close(folder)
    for left in target.parent.glob(f".{target.name}.*.part"):  # remove files of killed attempts
        with suppress(FileNotFoundError):
            left.unlink()
