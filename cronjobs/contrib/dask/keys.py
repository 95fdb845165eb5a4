"""The keys of ``executors:``, the clusters that job types may run on."""

from __future__ import annotations

import re
from typing import Final

from cronjobs.engine.config import fields, schema_parts
from cronjobs.engine.config.reader import ConfigKey, FieldError, Keys, Reading, ReportedError, shown, taken_as
from cronjobs.engine.config.settings import ExecutorSettings, ExecutorTls
from cronjobs.engine.config.yaml_nodes import Mapping, Node, Scalar

_ADDRESS: Final = re.compile(r"(tcp|tls)://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_RESOURCE: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@taken_as("address of a Dask scheduler", schema_parts.text(r"(tcp|tls)://[^\s/]+:[0-9]+"))
def _scheduler(reading: Reading, node: Node, path: str) -> str:
    text = reading.text(node)
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[3]) < 65_536:
        raise FieldError(f"{shown(node)} is not the address of a scheduler: write it like tls://scheduler:8786")
    return text


@taken_as(
    "mapping: resource and amount",
    schema_parts.mapping_of(_RESOURCE.pattern, schema_parts.number("number", 0.001, 1_000_000)),
)
def _resources(reading: Reading, node: Node, path: str) -> tuple[tuple[str, float], ...]:
    if not isinstance(node, Mapping):
        raise FieldError("write it as a mapping: {GPU: 1}")

    def entry(key: Scalar, value: Node, here: str) -> float:
        if not _RESOURCE.fullmatch(key.text):
            raise FieldError(f"{shown(key)} is not the name of a resource: write letters, digits and _ . -")
        amount: float = reading.read(fields.number(0.001, 1_000_000), value, here)
        return amount

    values, bad = reading.entries(node, path, entry)
    if bad:
        raise ReportedError
    return tuple(values.items())


TLS: Final[Keys] = {
    "ca": ConfigKey(
        fields.path_beside_file,
        "ca.pem",
        "The certificate authority that signed the scheduler's certificate.",
        "must be given",
    ),
    "cert": ConfigKey(fields.path_beside_file, "client.pem", "This host's certificate.", "must be given"),
    "key": ConfigKey(fields.path_beside_file, "client.key", "The key of that certificate.", "must be given"),
}


@taken_as("mapping", schema_parts.needs("ca", "cert", "key"), keys=TLS)
def _tls(reading: Reading, node: Node, path: str) -> ExecutorTls:
    values, bad = reading.fields(node, path, TLS)
    fields.require(values, bad, "ca", "cert", "key")
    return ExecutorTls(**values)


EXECUTOR: Final[Keys] = {
    "dask": ConfigKey(_scheduler, "tls://scheduler:8786", "The address of the cluster's scheduler.", "must be given"),
    "tls": ConfigKey(
        _tls,
        "{ca: ca.pem, cert: client.pem, key: client.key}",
        "The certificate files for a tls:// scheduler.",
        "none",
    ),
    "insecure": ConfigKey(
        fields.flag,
        "true",
        "Allow a scheduler on another host without TLS. Without TLS, a scheduler runs whatever anyone sends it.",
    ),
    "resources": ConfigKey(_resources, "{GPU: 1}", "The Dask worker resources that each attempt needs.", "none"),
    "in_flight": ConfigKey(
        fields.integer(1, 10_000), "50", "How many attempts one host may have on the cluster at once."
    ),
    "queue_wait": ConfigKey(
        fields.span("1s", "7d"),
        "1h",
        "How long an attempt waits for a worker. After that, cronjobs releases the job without using up a try, and "
        "reports the delay.",
    ),
}


@taken_as("mapping", schema_parts.needs("dask"), keys=EXECUTOR, defaults=ExecutorSettings("", ""))
def _executor(reading: Reading, node: Node, path: str) -> ExecutorSettings:
    values, bad = reading.fields(node, path, EXECUTOR)
    fields.require(values, bad, "dask")
    scheme, _, rest = values["dask"].partition("://")
    if scheme == "tls" and "tls" not in values:
        raise FieldError('tls:// needs three files: write "tls: {ca: ca.pem, cert: client.pem, key: client.key}"')
    if scheme == "tcp" and "tls" in values:
        raise FieldError('tcp:// is never encrypted, so the key "tls" has no effect: write "dask: tls://…"')
    if scheme == "tcp" and not values.get("insecure") and not fields.is_loopback(rest.rpartition(":")[0].strip("[]")):
        raise FieldError(
            "a scheduler runs whatever it is sent, and tcp:// lets anyone connect: write tls:// and the key "
            '"tls: {ca, cert, key}", or write "insecure: true" if the network is private'
        )
    return ExecutorSettings(path.rpartition(".")[2], **values)


executors: Final = fields.named("mapping: executor → its settings", _executor)
