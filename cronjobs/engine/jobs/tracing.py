"""When code enqueues a job, store the code's trace with the job, so that the job's own trace can be linked to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

TRACEPARENT: Final = "traceparent"  # https://www.w3.org/TR/trace-context/


def with_trace(meta: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return *meta*. If it has no traceparent, add that of OpenTelemetry's current span. Imports nothing."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or (meta is not None and TRACEPARENT in meta):
        return meta
    try:
        span = trace.get_current_span().get_span_context()
        if not span.is_valid:
            return meta
        written = f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"
    # OpenTelemetry is only half imported, or its version has another interface. Enqueue the job without its trace.
    except Exception:
        return meta
    return {**(meta or {}), TRACEPARENT: written}
