"""The version of the user's code: a hash of the source files that this process has imported from it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.registry import registered
from cronjobs.engine.probe.state_files import blake2b
from cronjobs.version import __version__

_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


def source_hash(settings: Settings) -> str:
    """Return a hash of the user's code.

    The hash is the same on all hosts with the same code. A deploy of different code changes the hash.

    The user's code consists of the packages of the handlers, and the modules in the file's folder or on its import
    path. Libraries are not included. Of our own package, only the version is included.
    """
    packages = {handler.handler.__module__.partition(".")[0] for handler in registered().values()} - {"cronjobs"}
    packages |= {module.partition(".")[0] for module in settings.imports}
    # The import path has these folders without links, but the app may have put them on its path with links.
    theirs = (settings.folder, *settings.python_path)
    folders = tuple(f"{folder}/" for folder in (*theirs, *map(os.path.realpath, theirs)))
    total = blake2b(__version__.encode(), digest_size=16)
    for name, module in sorted(sys.modules.copy().items()):
        if name == "__main__":  # the script that started this process, which may stand in the project's .venv
            continue
        file = _file(module)
        if name.partition(".")[0] in packages or (file.startswith(folders) and not any(x in file for x in _INSTALLED)):
            content = _content(file)
            total.update(f"{name}:{len(content)}:".encode())
            total.update(content)
    return total.hexdigest()


def _file(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _content(file: str) -> bytes:
    try:
        return Path(file).read_bytes() if file else b""
    # The file is inside an archive, or has been removed.
    except OSError:
        return b""
