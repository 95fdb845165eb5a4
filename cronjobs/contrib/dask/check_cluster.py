"""``cronjobs check --live`` for a cluster: check its scheduler, and whether its workers can run attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from cronjobs.contrib.dask.messages import versions
from cronjobs.contrib.dask.rules import Versions, difference
from cronjobs.engine.config.settings import ExecutorSettings
from cronjobs.engine.tick.executors import NOT_INSTALLED
from cronjobs.text import one_line


def wrong_with(executor: ExecutorSettings) -> list[str]:
    """Query the scheduler and each worker. Return one sentence for each fault."""
    if find_spec("distributed") is None:
        return [f"executor {executor.name}: {NOT_INSTALLED}"]
    from cronjobs.contrib.dask.dask_cluster import ClusterAway, DaskCluster

    cluster = DaskCluster(executor, "cronjobs-check", lambda _: None)
    try:
        cluster.connect()
    except ClusterAway as error:
        return [f"executor {executor.name}: the scheduler {executor.dask} cannot be reached: {error}"]
    try:
        known, said = cluster.workers(), cluster.examine()
    except Exception as error:  # the connection was lost after it was made
        return [f"executor {executor.name}: the scheduler {executor.dask} does not answer: {error}"]
    finally:
        cluster.close()
    return [f"executor {executor.name}: {fault}" for fault in faults(executor, known, said)]


def faults(executor: ExecutorSettings, known: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[str]:
    """Yield one sentence for each fault of a cluster.

    *known* maps addresses to the scheduler's workers. *said* maps addresses to each worker's answer or exception.
    """
    if not known:
        yield "the scheduler has no workers"
    for name, amount in executor.resources:
        if known and not any(worker.get("resources", {}).get(name, 0) >= amount for worker in known.values()):
            yield f"no worker offers the resource {name}={amount:g}: start workers with --resources {name}={amount:g}"
    for address, answer in sorted(said.items()):
        if not isinstance(answer, Mapping):
            yield f"worker {address} cannot run cronjobs: {one_line(f'{type(answer).__name__}: {answer}', 300)}"
            continue
        differs = difference(versions(), Versions(str(answer["cronjobs"]), str(answer["python"])))
        if differs is not None:
            yield f"worker {address}: {differs}"
        if answer["fault"] is not None:
            yield f"worker {address}: {one_line(str(answer['fault']), 300)}"
