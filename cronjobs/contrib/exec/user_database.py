"""The user's own SQLite database, for exec without a project. It is in the state folder. Imports no database code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cronjobs.engine.config.host_timezone import host_timezone
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.probe.state_files import folder_here, open_folder

FILE: Final = "exec.db"  # the name of the database in the state folder


def no_project() -> Settings:
    """Return the settings for exec without a project: SQLite in the state folder."""
    folder = Path(folder_here())
    return Settings(
        file=folder / "cronjobs.yaml",
        folder=folder,
        database=f"sqlite:///{folder / FILE}",
        timezone=host_timezone(),
        without_project=True,
    )


def has_runs() -> bool:
    """Whether exec has recorded anything in the state folder. False if other users can write to that folder."""
    try:
        os.close(open_folder(folder_here()))
    except OSError:
        return False
    return (Path(folder_here()) / FILE).exists()
