"""``alerts:`` and ``ping:`` of the file: a bad channel or threshold disables only itself, as other entries do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from cronjobs.config import fields
from cronjobs.config.fields import NAME, NAME_RULE
from cronjobs.config.reader import FieldError, Reader, Reading, ReportedError, is_unreadable, nearest, shown
from cronjobs.config.settings import (
    AlertChannel,
    AlertFilter,
    AlertSettings,
    AlertThreshold,
    CommandChannel,
    MailChannel,
    WebhookChannel,
)
from cronjobs.config.yaml_nodes import Mapping, Node, Scalar
from cronjobs.masking import long_enough
from cronjobs.rules.finding_kinds import FINDING_KINDS

_ADDRESS: Final = re.compile(r"[^\s<>@,;\"\x00-\x1f\x7f]{1,64}@[^\s<>@,;\"\x00-\x1f\x7f]{1,255}")
_WELL_FORMED: Final = fields.matching(
    r"[a-z_]{1,40}(:[^\x00-\x1f\x7f]{1,1000})?", "a finding: write it like dead, or host:web2"
)


def _finding(reading: Reading, node: Node, path: str) -> str:
    text: str = _WELL_FORMED(reading, node, path)
    kind = text.partition(":")[0]
    if kind in FINDING_KINDS:
        return text
    meant = nearest(kind, FINDING_KINDS)
    guess = f', did you mean "{meant}"?' if meant else f": there are {', '.join(sorted(FINDING_KINDS))}"
    raise FieldError(f"{shown(node)} is no kind of finding{guess}")


_SEVERITY: Final = fields.choice("critical", "warning", "notice")


def _secret(reading: Reading, node: Node, path: str) -> str:
    """A text that is masked wherever text is shown, also if it is written out in the file."""
    text = reading.text(node, secret=True)
    reading.secrets |= long_enough([text])
    return text


def _url(reading: Reading, node: Node, path: str) -> str:
    text = _secret(reading, node, path)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or not text.isascii() or any(character <= " " or character == "\x7f" for character in text):
        raise FieldError("this is no address of a web server: write https://…")  # it may be a secret: not quoted
    return text


ping: Final = _url


def _address(reading: Reading, node: Node, path: str) -> str:
    text = reading.text(node)
    if not _ADDRESS.fullmatch(text) or not text.isascii():
        raise FieldError(f"{shown(node)} is not a mail address: write it like ops@example.com")
    return text


def _addresses(reading: Reading, node: Node, path: str) -> tuple[str, ...]:
    if isinstance(node, Scalar):
        return (_address(reading, node, path),)
    found: tuple[str, ...] = fields.some_of(_address, "nobody would get the mail")(reading, node, path)
    return found


_HOST: Final = fields.matching(r"[A-Za-z0-9._:\[\]-]{1,253}", "a host: write it like smtp.example.com")
_MAIL: Final[dict[str, Reader]] = {
    "host": _HOST,
    "port": fields.integer(1, 65_535),
    "tls": fields.choice("starttls", "tls", "none"),
    "user": lambda reading, node, path: reading.text(node),
    "password": _secret,
    "from": _address,
    "to": _addresses,
}
_WEBHOOK: Final[dict[str, Reader]] = {"url": _url, "format": fields.choice("json", "slack", "teams")}


def _mail(reading: Reading, node: Node, path: str) -> MailChannel:
    values, bad = reading.fields(node, path, _MAIL)
    _require(values, bad, "host", "from", "to")
    if ("user" in values) != ("password" in values) and not bad:
        raise FieldError("user and password go together: write both, or neither")
    if "password" in values and values.get("tls") == "none" and values["host"] not in ("localhost", "127.0.0.1", "::1"):
        raise FieldError("the password would go over the network as it is: write tls: starttls, or tls: tls")
    values["sender"] = values.pop("from")
    return MailChannel(**values)


def _webhook(reading: Reading, node: Node, path: str) -> WebhookChannel:
    values, bad = reading.fields(node, path, _WEBHOOK)
    _require(values, bad, "url")
    return WebhookChannel(**values)


def _command(reading: Reading, node: Node, path: str) -> CommandChannel:
    return CommandChannel(fields.command(reading, node, path))


def _require(values: dict[str, Any], bad: set[str], *names: str) -> None:
    if bad:
        raise ReportedError
    if missing := [name for name in names if name not in values]:
        raise FieldError(f"{', '.join(f'{name}:' for name in missing)} must be given here")


_FILTER: Final[dict[str, Reader]] = {
    "severity": _SEVERITY,
    "findings": fields.some_of(_finding, "nothing would be sent; for all of them delete the key"),
    "ignore": fields.list_of(_finding),
}
_WAYS: Final[dict[str, Reader]] = {"mail": _mail, "webhook": _webhook, "command": _command}
_THRESHOLD: Final[dict[str, Reader]] = {
    "of": fields.choice("dead", "failed"),
    "more_than": fields.integer(0, 9_999),
    "within": fields.span("1m", "7d"),
    "job_type": fields.name,
    "severity": _SEVERITY,
}


def _named(read: Reader) -> Reader:
    """A mapping of named entries; one that is bad is reported and left out."""

    def entries(reading: Reading, node: Node, path: str) -> dict[str, Any]:
        if isinstance(node, Scalar) and node.is_null:
            return {}
        if not isinstance(node, Mapping):
            raise FieldError("write it as a mapping: a name, and below it its settings")

        def entry(key: Scalar, value: Node, here: str) -> Any:
            if not NAME.fullmatch(key.text):
                raise FieldError(f"{shown(key)} is not {NAME_RULE}")
            return reading.read(read, value, here)

        return reading.entries(node, path, entry).values

    return entries


def _channel(reading: Reading, node: Node, path: str) -> tuple[Any, dict[str, Any]]:
    values, bad = reading.fields(node, path, _WAYS | _FILTER)
    if bad:
        raise ReportedError
    ways = [values.pop(name) for name in _WAYS if name in values]
    if len(ways) != 1:
        raise FieldError("how is it sent? One of mail: {…}, webhook: {…} and command: […]")
    return ways[0], values


def _threshold(reading: Reading, node: Node, path: str) -> AlertThreshold:
    values, bad = reading.fields(node, path, _THRESHOLD)
    _require(values, bad, "of", "more_than", "within")
    return AlertThreshold(path.rpartition(".thresholds.")[2], **values)


_ALERTS: Final[dict[str, Reader]] = _FILTER | {"channels": _named(_channel), "thresholds": _named(_threshold)}


def alerts(reading: Reading, node: Node, path: str) -> AlertSettings | None:
    """The section; None if nothing of it can be read. What a channel does not say is as the section has it."""
    if is_unreadable(node):
        return None
    values = reading.fields(node, path, _ALERTS).values
    common = AlertFilter(**{name: values[name] for name in _FILTER if name in values})
    channels = {
        name: AlertChannel(name, way, replace(common, **own)) for name, (way, own) in values.get("channels", {}).items()
    }
    return AlertSettings(channels, values.get("thresholds", {}))
