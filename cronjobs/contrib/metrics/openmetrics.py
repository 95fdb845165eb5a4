"""Format metrics as OpenMetrics text, which Prometheus and node_exporter's textfile collector can read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cronjobs.contrib.metrics.families import Labels, Metric


def lines_of(families: Iterable[Metric]) -> Iterator[str]:
    for family in families:
        yield f"# TYPE {family.name} {family.kind}"
        if family.name.endswith("_seconds"):
            yield f"# UNIT {family.name} seconds"
        yield f"# HELP {family.name} {_escaped(family.help)}"
        for suffix, labels, value in family.samples:
            yield f"{family.name}{suffix}{_labels(labels)} {value}"
    yield "# EOF"


def _labels(labels: Labels) -> str:
    written = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{written}}}" if written else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
