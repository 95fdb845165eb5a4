"""Swap crontab lines from cron to cronjobs and back.

A swapped line becomes a comment in the same place. All functions here are pure.

    # cronjobs swapped /srv/shop/cronjobs.yaml: 15 2 * * * backup

To restore a line, only the prefix is removed. So restoring needs no backup, and keeps lines that were added since.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from cronjobs.desk.crontab import block
from cronjobs.desk.crontab.block import SWAPPED
from cronjobs.desk.crontab.lines import place_of_block


def swap(crontab: str, numbers: Collection[int], wanted: str, config: Path) -> str:
    """Comment out the lines with these *numbers* (from 1) and install the block *wanted*. Raises BlockBroken."""
    lines = crontab.split("\n")
    for number in numbers:
        lines[number - 1] = _begin(config) + lines[number - 1]
    text = "\n".join(lines)
    return block.install(text, wanted, config, place_of_block(text))


def restore(crontab: str, config: Path) -> str:
    """Undo ``swap``: restore the lines, and remove the block. Raises BlockBroken.

    A block that existed before the swap is removed, too, because its ticks would run the restored lines as well.
    """
    begin = _begin(config)
    if not any(line.startswith(begin) for line in crontab.split("\n")):
        return crontab
    return "\n".join(line.removeprefix(begin) for line in block.remove(crontab, config).split("\n"))


def hand_on(crontab: str, numbers: Collection[int], old: str, config: Path) -> str:
    """Hand the swapped lines with these *numbers* (from 1) from the configuration *old* over to *config*."""
    lines = crontab.split("\n")
    for number in numbers:
        lines[number - 1] = _begin(config) + lines[number - 1].removeprefix(_begin(Path(old)))
    return "\n".join(lines)


def unswapped(crontab: str) -> str:
    """Return *crontab* with every swapped line as it was, for all configurations. No line changes its place."""
    return "\n".join(_ANY_BEGIN.sub("", line, count=1) for line in crontab.split("\n"))


def swapped_to(crontab: str) -> dict[str, list[int]]:
    """Map the path of each configuration that took over swapped lines to the numbers of these lines."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(crontab.split("\n"), 1):
        if begin := _ANY_BEGIN.match(line):
            found.setdefault(begin["config"], []).append(number)
    return found


_ANY_BEGIN: Final = re.compile(rf"^{SWAPPED}(?P<config>/.*?): ")


def _begin(config: Path) -> str:
    return f"{SWAPPED}{config}: "
