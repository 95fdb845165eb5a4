"""Metrics as the official client of Prometheus reads them. It refuses a series that occurs twice."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The client has no type hints.
_openmetrics: Any = import_module("prometheus_client.openmetrics.parser")
_classic: Any = import_module("prometheus_client.parser")


def families(text: str) -> list[Any]:
    return list(_openmetrics.text_string_to_metric_families(text))


def as_node_exporter_reads(text: str) -> list[Any]:
    """Read the text as the older format, in which OpenMetrics' additions are comments."""
    return list(_classic.text_string_to_metric_families(text))
