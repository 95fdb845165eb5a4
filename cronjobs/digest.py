"""SHA-256 of the standard library without OpenSSL, whose loading takes a quarter as long as Python's own start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256 as sha256
else:
    try:
        from _sha2 import sha256  # Python's own, from 3.12 on
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:  # pragma: no cover - a Python without it
            from hashlib import sha256  # noqa: F401
