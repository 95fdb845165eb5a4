"""How often a test tries, where more tries find more: few for every day, many with CRONJOBS_TESTS_LONG=1."""

from __future__ import annotations

import os

LONG = bool(os.environ.get("CRONJOBS_TESTS_LONG"))


def rounds(few: int, many: int) -> int:
    return many if LONG else few
