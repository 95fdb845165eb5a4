"""Parse requests strictly. Refuse a request that no browser would send, rather than guess its meaning."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from werkzeug.exceptions import BadRequest, UnsupportedMediaType
from werkzeug.wrappers import Request

LONGEST_FORM: Final = 16 * 1024  # bytes
MOST_FIELDS: Final = 20
TICKED: Final = "job"  # only this field may be sent more than once, because each job has a checkbox
MOST_TICKED: Final = 500
# A path at which pages can be mounted. "//evil.example" does not match, so no redirect leads to another site.
_MOUNT: Final = re.compile(r"(?:/[^/\\\s\x00-\x1f\x7f\ufffd]+)*")


class PageRequest(Request):
    max_content_length = LONGEST_FORM

    @cached_property
    def base(self) -> str:
        """The path at which the pages are mounted, such as "" or "/a/b". Raises BadRequest."""
        if not _MOUNT.fullmatch(self.root_path):
            raise BadRequest("the address at which the pages are mounted is not a path")
        return quote(self.root_path)

    @cached_property
    def query(self) -> dict[str, str]:
        """The fields of the address. The values of TICKED are joined by commas. Raises BadRequest."""
        return _fields(self.query_string)

    def fields(self) -> dict[str, str]:
        """Return the form's fields. Raises BadRequest, RequestEntityTooLarge, or UnsupportedMediaType."""
        if self.mimetype != "application/x-www-form-urlencoded":
            raise UnsupportedMediaType("a form is expected here")
        return _fields(self.get_data())

    def header(self, name: str) -> str:
        """Return the header, or "" if it was not sent."""
        return self.headers.get(name, "")

    @property
    def asked_host(self) -> str:
        """The Host header in lower case, or "" if there is none."""
        return self.header("Host").lower()

    def is_of(self, origin: str) -> bool:
        """Whether *origin* is this server's own origin."""
        try:
            return urlsplit(origin).netloc.lower() == self.asked_host
        except ValueError:
            return False


def _fields(encoded: bytes) -> dict[str, str]:
    try:
        found = parse_qsl(
            encoded.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS + MOST_TICKED, errors="strict"
        )
    except ValueError:  # UnicodeDecodeError is a ValueError, too
        raise BadRequest("the address or the form data cannot be read") from None
    if any("\0" in part for pair in found for part in pair):
        raise BadRequest("the address or the form data cannot be read")
    ticked = [value for name, value in found if name == TICKED]
    others = [pair for pair in found if pair[0] != TICKED]
    if len(others) > MOST_FIELDS:
        raise BadRequest("the address or the form has too many fields")
    if len(dict(others)) != len(others):
        raise BadRequest("a field was sent twice")
    return dict(others) | ({TICKED: ",".join(ticked)} if ticked else {})
