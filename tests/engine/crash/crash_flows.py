"""All flows that are killed at each of their points: ``FLOWS``, by name. Each file of flows is named here."""

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
