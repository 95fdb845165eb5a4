"""``FLOWS``: all flows by name.

Tests kill each flow at each of its points. Each file of flows has to be imported here.
"""

from __future__ import annotations

from engine.crash import (
    crash_flows_data,
    crash_flows_jobs,
    crash_flows_operators,
    crash_flows_schedules,
    crash_flows_transactions,
)
from engine.crash.crash_registry import FLOWS

FILES = (crash_flows_data, crash_flows_schedules, crash_flows_transactions, crash_flows_jobs, crash_flows_operators)

__all__ = ["FILES", "FLOWS"]
