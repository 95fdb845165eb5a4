"""HTML by construction: what is not ``Html`` already is text, and becomes harmless as it is put in.

Text from rows is written by anybody: secrets are hidden, control characters are made visible, markup is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Final, TypeAlias

from cronjobs import masking
from cronjobs.text import decoded, visible


@dataclass(frozen=True, slots=True)
class Html:
    """Markup that is safe as it is; made only here."""

    markup: str


Child: TypeAlias = "Html | str | int | bytes | Iterable[Child] | None"
Attribute: TypeAlias = "str | int | bool | None"

_VOID: Final = frozenset({"br", "hr", "input", "link", "meta"})
_URLS: Final = frozenset({"href", "action", "src"})
_OWN_NAMES: Final = {"class_": "class", "for_": "for", "view_box": "viewBox", "preserve": "preserveAspectRatio"}


def text(value: str | int) -> str:
    """*value* as markup that shows it."""
    return escape(visible(masking.hide(str(value))), quote=True)


def h(tag: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. An attribute that is None or False is left out, one that is True has no value.

    Addresses (href, action, src) have to begin with a slash or be a fragment, so that no text from a row can be one
    that acts.
    """
    parts = [f"<{tag}"]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = _OWN_NAMES.get(name) or name.replace("_", "-")
        if name in _URLS and not _is_ours(value):
            raise ValueError(f"{name}={value!r} is no address of ours")
        parts.append(f" {name}" if value is True else f' {name}="{text(value)}"')
    parts.append(">")
    if tag not in _VOID:
        _add(parts, children)
        parts.append(f"</{tag}>")
    return Html("".join(parts))


def _is_ours(address: Attribute) -> bool:
    return isinstance(address, str) and address.startswith(("/", "#")) and not address.startswith(("//", "/\\"))


def together(*children: Child) -> Html:
    parts: list[str] = []
    _add(parts, children)
    return Html("".join(parts))


def style(sheet: str) -> Html:
    """A style sheet of ours, for a file that stands alone."""
    if "</" in sheet:
        raise ValueError("this would end the element")
    return Html(f"<style>{sheet}</style>")


def document(head: Html, body: Html) -> str:
    return f'<!DOCTYPE html>\n<html lang="en">{head.markup}{body.markup}</html>\n'


def _add(parts: list[str], children: Iterable[Child]) -> None:
    for child in children:
        match child:
            case None:
                pass
            case Html():
                parts.append(child.markup)
            case str() | int():
                parts.append(text(child))
            case bytes():  # SQLite keeps any type in any column
                parts.append(text(decoded(child)))
            case _:
                _add(parts, child)
