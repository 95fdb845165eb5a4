"""Where modules of the user's are imported from, and what they find in their environment."""

from __future__ import annotations

import os
import sys

from cronjobs.engine.config.settings import Settings


def prepare_imports(settings: Settings) -> None:
    """Set the file's variables, and put its folders on the import path."""
    for name, value in settings.env:
        os.environ[name] = value  # settings leave out what real variables override; cron itself sets PATH
    for folder in (*reversed(settings.python_path), settings.folder):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
