"""How many rounds a test runs, if more rounds find more: normally few, and many with CRONJOBS_TESTS_LONG=1."""

from __future__ import annotations

import os

LONG = bool(os.environ.get("CRONJOBS_TESTS_LONG"))


def rounds(few: int, many: int) -> int:
    return many if LONG else few
