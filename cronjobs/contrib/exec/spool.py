"""The spool: small files in the state folder, each with one run that could not be written to the database.

exec imports this module in every run, so this module imports nothing slow. The run's token is a unique key in the
database. So the database stores a run only once, even if its file is delivered twice.
"""

from __future__ import annotations

import os

from cronjobs.engine.probe import state_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FOLDER = state_files.SPOOL
MOST_FILES = 2000
MOST_BYTES = 16 << 20  # if the spool is larger than this, spool runs without their output


def put(where: str, run: dict[str, Any]) -> str | None:
    """Spool *run* for the project *where*. Return None, or the reason why it could not be spooled."""
    try:
        _make_spool(state_files.folder_here())
        folder = state_files.open_spool()
    except OSError as error:
        return f"{state_files.folder_here()}: {error.strerror or error}"
    try:
        names = os.listdir(folder)
        if len(names) >= MOST_FILES:
            return f"{MOST_FILES} runs are already waiting in {state_files.folder_here()}/{FOLDER}"
        name = f"{where}-{int(run['began'] * 1e6):016}-{run['token']}.json"
        without_output = run | {"output": ""}
        if sum(_size(each, folder) for each in names) > MOST_BYTES:
            run = without_output
        try:
            _write(folder, name, run)
        except OSError:  # if the disk is full, the run may still fit without its output
            _write(folder, name, without_output)
    except OSError as error:
        return f"{state_files.folder_here()}/{FOLDER}: {error.strerror or error}"
    finally:
        os.close(folder)
    return None


def _size(name: str, folder: int) -> int:
    """Return the file's size, or 0 if another process has renamed or delivered the file by now."""
    try:
        return os.stat(name, dir_fd=folder).st_size
    except OSError:
        return 0


def _write(folder: int, name: str, run: dict[str, Any]) -> None:
    import json

    descriptor = os.open(f".{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            left = json.dumps(run).encode()
            # On a nearly full disk, write() may write a part of the data and raise no error.
            while left:
                left = left[file.write(left) :]
            os.fsync(descriptor)
        os.rename(f".{name}", name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(f".{name}", dir_fd=folder)
        raise


def read(name: str) -> dict[str, Any] | None:
    """Return the run in the file, or None if the file is unreadable or belongs to another user."""
    import json

    try:
        folder = state_files.open_spool()
    except OSError:
        return None
    try:
        content = state_files.read_file(folder, name)
        found = json.loads(content) if content else None
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(folder)


def remove(name: str) -> None:
    _do(lambda folder: os.unlink(name, dir_fd=folder))


def put_aside(name: str) -> None:
    """Rename the file of a run that the database refuses, so that a person can look at it."""
    _do(lambda folder: os.rename(name, f"{name}.refused", src_dir_fd=folder, dst_dir_fd=folder))


def _do(change: Callable[[int], None]) -> None:
    try:
        folder = state_files.open_spool()
    except OSError:
        return
    try:
        change(folder)
    except OSError:
        pass
    finally:
        os.close(folder)


def _make_spool(state: str) -> None:
    """Create the spool in *state*. Raises OSError if other users own *state* or can write to it, as in /tmp."""
    _make(state)
    folder = state_files.open_folder(state)
    try:
        os.mkdir(FOLDER, 0o700, dir_fd=folder)
    except FileExistsError:
        pass
    finally:
        os.close(folder)


def _make(path: str) -> None:
    """Create the folder and its missing parents with mode 700. Cron's umask may be 000, so do not rely on it."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
