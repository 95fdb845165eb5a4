"""The keys of ``alerts:``. A faulty channel or threshold is disabled, but the other entries stay in force."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from cronjobs.desk.rules.finding_kinds import FINDING_KINDS
from cronjobs.engine.config import fields, schema_parts
from cronjobs.engine.config.reader import ConfigKey, FieldError, Keys, Reading, is_unreadable, shown, taken_as
from cronjobs.engine.config.settings import (
    AlertChannel,
    AlertFilter,
    AlertSettings,
    AlertThreshold,
    CommandChannel,
    MailChannel,
    WebhookChannel,
)
from cronjobs.engine.config.yaml_nodes import Node, Scalar
from cronjobs.text import nearest

_ADDRESS: Final = re.compile(r"[^\s<>@,;\"\x00-\x1f\x7f]{1,64}@[^\s<>@,;\"\x00-\x1f\x7f]{1,255}")
_WELL_FORMED: Final = fields.matching(
    r"[a-z_]{1,40}(:[^\x00-\x1f\x7f]{1,1000})?",
    "a finding: write it like dead, or host:web2",
    words="finding",
    # Name the kinds in the schema, so that editors flag any other kind.
    schema=schema_parts.text(rf"({'|'.join(sorted(FINDING_KINDS))})(:.+)?"),
)


@taken_as("finding: a whole kind, such as dead, or a single finding, such as host:web2", _WELL_FORMED.schema)
def _finding(reading: Reading, node: Node, path: str) -> str:
    text: str = _WELL_FORMED(reading, node, path)
    kind = text.partition(":")[0]
    meant = nearest(kind, FINDING_KINDS, 0.85 if reading.extras else 0.6)
    if kind in FINDING_KINDS or (reading.extras and not meant):
        return text
    guess = f', did you mean "{meant}"?' if meant else f": there are {', '.join(sorted(FINDING_KINDS))}"
    raise FieldError(f"{shown(node)} is not a kind of finding{guess}")


_SEVERITY: Final = fields.choice("critical", "warning", "notice")


@taken_as("mail address", schema_parts.text(r"[^\s@]+@[^\s@]+"))
def _address(reading: Reading, node: Node, path: str) -> str:
    text = reading.text(node)
    if not _ADDRESS.fullmatch(text) or not text.isascii():
        raise FieldError(f"{shown(node)} is not an email address: write it like ops@example.com")
    return text


@taken_as("mail address, or a list of them", schema_parts.one_or_list(_address.schema))
def _addresses(reading: Reading, node: Node, path: str) -> tuple[str, ...]:
    if isinstance(node, Scalar):
        return (_address(reading, node, path),)
    found: tuple[str, ...] = fields.some_of(_address, "nobody would get the mail")(reading, node, path)
    return found


_HOST: Final = fields.matching(
    r"[A-Za-z0-9._:\[\]-]{1,253}", "a host: write it like smtp.example.com", words="name of a host"
)
_MAIL: Final[Keys] = {
    "host": ConfigKey(_HOST, "smtp.example.com", "The mail server.", "must be given"),
    "port": ConfigKey(
        fields.integer(1, 65_535), "2525", "The mail server's port.", '587; 465 with "tls: tls"; 25 with "tls: none"'
    ),
    "tls": ConfigKey(
        fields.choice("starttls", "tls", "none"),
        "tls",
        "How to encrypt the connection: STARTTLS, TLS from the start, or no encryption.",
    ),
    "user": ConfigKey(fields.anything, "cronjobs", "The name to log in with.", "no login"),
    "password": ConfigKey(fields.secret, "${SMTP_PASSWORD}", "The login password; masked in all output.", "no login"),
    "from": ConfigKey(_address, "cronjobs@example.com", "The sender's address.", "must be given"),
    "to": ConfigKey(_addresses, "[ops@example.com]", "The recipients' addresses.", "must be given"),
}
_WEBHOOK: Final[Keys] = {
    "url": ConfigKey(
        fields.web_address,
        "https://chat.example.com/hook",
        "The URL to POST to; masked like a password.",
        "must be given",
    ),
    "format": ConfigKey(
        fields.choice("json", "slack", "teams"),
        "slack",
        "The message format: cronjobs' own JSON, or the format that Slack or Teams accepts.",
    ),
}


@taken_as("mapping", schema_parts.needs("host", "from", "to"), keys=_MAIL, defaults=MailChannel("", (), ""))
def _mail(reading: Reading, node: Node, path: str) -> MailChannel:
    values, bad = reading.fields(node, path, _MAIL)
    fields.require(values, bad, "host", "from", "to")
    if ("user" in values) != ("password" in values):
        raise FieldError("user and password go together: write both, or neither")
    if "password" in values and values.get("tls") == "none" and not fields.is_loopback(values["host"]):
        raise FieldError('the password would cross the network in clear text: write "tls: starttls" or "tls: tls"')
    values["sender"] = values.pop("from")
    return MailChannel(**values)


@taken_as("mapping", schema_parts.needs("url"), keys=_WEBHOOK, defaults=WebhookChannel(""))
def _webhook(reading: Reading, node: Node, path: str) -> WebhookChannel:
    values, bad = reading.fields(node, path, _WEBHOOK)
    fields.require(values, bad, "url")
    return WebhookChannel(**values)


@taken_as(fields.command.words, fields.command.schema)
def _command(reading: Reading, node: Node, path: str) -> CommandChannel:
    return CommandChannel(fields.command(reading, node, path))


_FILTER: Final[Keys] = {
    "severity": ConfigKey(
        _SEVERITY, "critical", "The lowest severity that is sent; more severe findings are sent too."
    ),
    "findings": ConfigKey(
        fields.some_of(_finding, "an empty list would send no findings; to send all of them, delete the key"),
        "[dead, host]",
        "Only these findings are sent.",
        "all kinds",
    ),
    "ignore": ConfigKey(fields.list_of(_finding), "[late]", "These findings are not sent.", "none"),
}
_WAYS: Final[Keys] = {
    "mail": ConfigKey(
        _mail,
        "{host: smtp.example.com, from: cronjobs@example.com, to: ops@example.com}",
        "Send alerts by mail.",
        "one of mail, webhook, command",
    ),
    "webhook": ConfigKey(
        _webhook,
        "{url: https://chat.example.com/hook}",
        "Send alerts as HTTP POST requests.",
        "one of mail, webhook, command",
    ),
    "command": ConfigKey(
        _command,
        "[/usr/local/bin/page, --team, web]",
        "The program to start; it reads the message as JSON from standard input.",
        "one of mail, webhook, command",
    ),
}
_THRESHOLD: Final[Keys] = {
    "of": ConfigKey(
        fields.choice("dead", "failed"), "dead", "What to count: dead jobs or failed attempts.", "must be given"
    ),
    "more_than": ConfigKey(
        fields.integer(0, 9_999), "5", "Report a finding when the count is above this number.", "must be given"
    ),
    "within": ConfigKey(fields.span("1m", "7d"), "1h", "How far back from now to count.", "must be given"),
    "job_type": ConfigKey(fields.name, "shop.pay", "Count only jobs of this type.", "all types"),
    "severity": ConfigKey(_SEVERITY, "warning", "The severity of the finding."),
}


_CHANNEL: Final[Keys] = {
    **_WAYS,
    **{name: key._replace(unset="the value under alerts") for name, key in _FILTER.items()},
}


@taken_as("mapping", schema_parts.exactly_one(*_WAYS), keys=_CHANNEL)
def _channel(reading: Reading, node: Node, path: str) -> tuple[Any, dict[str, Any]]:
    values, bad = reading.fields(node, path, _CHANNEL)
    fields.require(values, bad)
    ways = [values.pop(name) for name in _WAYS if name in values]
    if len(ways) != 1:
        raise FieldError("a channel needs exactly one of the keys mail, webhook and command")
    return ways[0], values


@taken_as(
    "mapping",
    schema_parts.needs("of", "more_than", "within"),
    keys=_THRESHOLD,
    defaults=AlertThreshold("", "dead", 0, timedelta(0)),
)
def _threshold(reading: Reading, node: Node, path: str) -> AlertThreshold:
    values, bad = reading.fields(node, path, _THRESHOLD)
    fields.require(values, bad, "of", "more_than", "within")
    return AlertThreshold(path.rpartition(".thresholds.")[2], **values)


_ALERTS: Final[Keys] = {
    **_FILTER,
    "channels": ConfigKey(
        fields.named("mapping: channel → its settings", _channel),
        "{pager: {command: [page]}}",
        'The channels that send alerts. "severity", "findings" and "ignore" in a channel override those under alerts.',
        "none",
    ),
    "thresholds": ConfigKey(
        fields.named("mapping: threshold → its settings", _threshold),
        "{many-deaths: {of: dead, more_than: 5, within: 1h}}",
        "Limits on dead jobs or failed attempts; cronjobs reports a count above its limit as a finding.",
        "none",
    ),
}


@taken_as("mapping", {}, keys=_ALERTS, defaults=AlertFilter())
def alerts(reading: Reading, node: Node, path: str) -> AlertSettings | None:
    """Read the section ``alerts:``. Return None if the whole section is unreadable.

    A channel inherits the section's filter keys, unless the channel sets them itself.
    """
    if is_unreadable(node):
        return None
    values = reading.fields(node, path, _ALERTS).values
    common = AlertFilter(**{name: values[name] for name in _FILTER if name in values})
    channels = {
        name: AlertChannel(name, way, replace(common, **own)) for name, (way, own) in values.get("channels", {}).items()
    }
    return AlertSettings(channels, values.get("thresholds", {}))
