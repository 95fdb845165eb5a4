"""Send alerts by HTTP POST, as our JSON, or as the JSON that incoming webhooks of Slack and Teams accept."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from cronjobs.contrib.alerts.texts import Message, as_json, body, subject
from cronjobs.engine.config.settings import WebhookChannel
from cronjobs.version import __version__

LONGEST: Final = 20_000  # characters; Slack truncates a text at 40,000, Teams rejects more than 28 KB


class WebhookRefused(OSError):
    """The server answered with an error."""


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, because a redirected POST becomes a GET without its body."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def send(channel: WebhookChannel, message: Message, timeout_s: float) -> None:
    """POST the message.

    Raises OSError, including when the response is not 2xx. The error never quotes the URL, which is a secret.
    """
    post(channel.url, json.dumps(payload(channel, message)).encode(), timeout_s)


def post(url: str, content: bytes, timeout_s: float, kind: str = "application/json") -> None:
    """POST *content*, a message or a ping, through the proxies given in the environment."""
    request = Request(url, data=content, method="POST")
    request.add_header("Content-Type", kind)
    request.add_header("User-Agent", f"cronjobs/{__version__}")
    try:
        with build_opener(_NoRedirects).open(request, timeout=timeout_s) as answer:
            answer.read(1024)
    except HTTPError as error:
        with error:
            raise WebhookRefused(f"the server answered {error.code} {error.reason}") from None
    except (ValueError, EOFError) as error:
        raise WebhookRefused(f"{type(error).__name__} in the answer") from None


def payload(channel: WebhookChannel, message: Message) -> dict[str, Any]:
    match channel.format:
        case "slack":
            # Escape, so that a job's text can neither mention @everyone nor insert links.
            text = f"*{subject(message)}*\n{body(message)}"[:LONGEST]
            return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
        case "teams":
            # Rich text blocks, because a plain text block would render Markdown in a job's error or output.
            blocks = [
                {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text} | more]}
                for text, more in ((subject(message), {"weight": "bolder"}), (body(message)[:LONGEST], {}))
            ]
            card = {
                "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                "type": "AdaptiveCard",
                "version": "1.4",
                "body": blocks,
            }
            attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
            return {"type": "message", "attachments": [attachment]}
    return as_json(message)
