"""The name of the host's own time zone, which cron uses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cronjobs.engine.crontime.zone_names import zone_exists


def host_timezone(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of this host's time zone, or "UTC" if the time zone has no name that every host knows."""
    for name in (_from_tz(environ), _from_file(root / "etc/timezone"), _from_link(root / "etc/localtime")):
        if name and zone_exists(name):
            return "UTC" if name in ("Etc/UTC", "Etc/Universal", "Etc/Zulu", "Universal", "Zulu") else name
    return "UTC"


def _from_tz(environ: Mapping[str, str]) -> str:
    name = environ.get("TZ", "").removeprefix(":")  # see tzset(3)
    return _below_zoneinfo(name) if name.startswith("/") else name


def _from_file(file: Path) -> str:
    try:
        with file.open(encoding="ascii") as opened:
            return opened.read(200).split("#")[0].strip()
    except (OSError, ValueError):
        return ""


def _from_link(link: Path) -> str:
    try:
        return _below_zoneinfo(str(link.readlink()))
    except (OSError, ValueError):
        return ""


def _below_zoneinfo(path: str) -> str:
    return path.rpartition("zoneinfo/")[2].removeprefix("posix/").removeprefix("right/")
