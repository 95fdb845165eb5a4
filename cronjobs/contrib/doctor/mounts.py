"""Find the type of a path's file system, on Linux."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ESCAPED = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: Path, root: Path) -> str | None:
    """Return the type, such as "ext4" or "nfs4", or None if it is unknown (no /proc)."""
    try:
        table = (root / "proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None
    place = os.path.realpath(path)
    found, longest = None, -1
    for line in table.splitlines():
        # proc(5): id, parent, device, root, mount point, options, optional fields, "-", type, source, options
        mount, dash, rest = line.partition(" - ")
        fields = mount.split()
        if not dash or len(fields) < 5:
            continue
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # the later of two mounts on the same point hides the earlier one
            found, longest = rest.split(" ", 1)[0], len(point)
    return found
