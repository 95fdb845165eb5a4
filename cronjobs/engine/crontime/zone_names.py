"""Check the names of time zones, and guess which zone a misspelt name means."""

from __future__ import annotations

import re
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

from cronjobs.text import nearest

# Zone files with these names differ between hosts, because they contain the host's own zone, or zones with leap
# seconds.
HOST_ZONES: Final = ("localtime", "posixrules", "posix/", "right/", "Factory")


@cache
def zone_exists(name: str) -> bool:
    """Return whether *name* is a time zone that is the same on every host."""
    if name.startswith(HOST_ZONES):
        return False
    try:
        ZoneInfo(name)
    # *name* contains ".." or begins with "/", is a folder such as "America", or does not exist.
    except (ValueError, OSError, LookupError):
        return False
    return True


@cache
def zone_meant(word: str) -> str | None:
    """Return the zone that *word* probably means, or None.

    This function recognises words such as "Berlin/Europe", "Germany/Berlin" and "new york".
    """
    # ``available_timezones`` reads all zone files, so the result is cached.
    from zoneinfo import available_timezones

    known = sorted(zone for zone in available_timezones() if zone_exists(zone))
    if any(zone.startswith(f"{word}/") for zone in known):
        # *word* is a whole continent, so no single zone is meant.
        return None
    parts = [part.strip().replace(" ", "_") for part in re.split("[/,]", word)]
    for spelt in ("/".join(parts), "/".join(reversed(parts))):  # "Berlin/Europe"
        if found := nearest(spelt, known, cutoff=0.9):
            return found
    cities = {zone.rpartition("/")[2].lower(): zone for zone in known if "/" in zone}
    for part in parts:  # "Germany/Berlin", "Berlin/Germany"
        if found := cities.get(part.lower()):
            return found
    if found := nearest(word, known):
        return found
    regions = {zone.partition("/")[0].lower() for zone in known if "/" in zone}
    city = nearest(next((part for part in reversed(parts) if part.lower() not in regions), ""), cities, cutoff=0.75)
    return cities[city] if city else None
