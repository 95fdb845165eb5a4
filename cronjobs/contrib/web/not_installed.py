"""The message that the commands print if the web extra is not installed."""

from __future__ import annotations

from cronjobs.errors import CronjobsError


class WebMissing(CronjobsError):
    exit_code = 2

    def __init__(self) -> None:
        super().__init__("the pages need Werkzeug, Jinja2 and waitress: pip install 'cronjobs[web]'")
