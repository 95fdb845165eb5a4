"""Read small files in the user's state folder, if nobody else can write to that folder. Follow no links."""

from __future__ import annotations

import os
import pwd
import stat

try:
    # The same function as in hashlib, whose import would also load OpenSSL, which takes as long as starting Python.
    from _blake2 import blake2b as blake2b
except ImportError:  # pragma: no cover - a Python without this module
    from hashlib import blake2b as blake2b

LONGEST = 1 << 20  # in bytes; we never write a longer file
# The name of the folder in which runs of "cronjobs exec" wait for the database.
SPOOL = "exec-spool"
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def lasting_folder() -> str | None:
    """Return $XDG_STATE_HOME/cronjobs, else ~/.local/state/cronjobs, or None if no writable home folder exists.

    If HOME is not set, which may happen under cron, the home is taken from the password file.
    """
    named = os.environ.get("XDG_STATE_HOME")
    if named and named.startswith("/"):
        return f"{named}/cronjobs"
    home = os.environ.get("HOME") or ""
    if not home:
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return f"{home}/.local/state/cronjobs" if home and os.access(home, os.W_OK) else None


def folder_here() -> str:
    """Return the lasting folder or, if none exists, a folder in /tmp that may not survive a restart of the host."""
    return lasting_folder() or f"{os.environ.get('TMPDIR') or '/tmp'}/cronjobs-{os.getuid()}"


def spool_address(config: str | None, url: str | None) -> str:
    """Return the address of a project's spooled runs, with which the names of its spool files begin.

    The address depends on the configuration file's path, and on a database URL from outside the file.
    """
    # Do not resolve links, because a deploy may change links such as /srv/shop/current.
    file = os.path.normpath(config) if config else ""
    return blake2b(os.fsencode(f"{file}\0{url or ''}"), digest_size=8).hexdigest()


def spooled(address: str | None) -> list[str]:
    """Return the names of the spool files for the project with *address*, or for all projects if it is None.

    Never raises an error.
    """
    try:
        folder = open_spool()
    except OSError:
        return []
    try:
        prefix = "" if address is None else f"{address}-"
        names = (name for name in os.listdir(folder) if name.endswith(".json") and not name.startswith("."))
        return sorted(name for name in names if name.startswith(prefix))
    except OSError:
        return []
    finally:
        os.close(folder)


def spooled_at(name: str) -> float:
    """Return when the run in the spool file *name* began, in seconds since 1970, or 0.0 if the file is not a spool file
    of ours.
    """
    began_us = name.partition("-")[2].partition("-")[0]
    return int(began_us) / 1e6 if began_us.isascii() and began_us.isdecimal() else 0.0


def open_spool() -> int:
    """Return a descriptor of the spool folder. Raises OSError if the folder does not exist, or if other users may write
    to it.
    """
    state = folder_here()
    os.close(open_folder(state))
    return open_folder(f"{state}/{SPOOL}")


def open_folder(path: str) -> int:
    """Return a descriptor of the folder *path*.

    Files opened through the descriptor are in the folder that was checked, even if somebody renames that folder. Raises
    OSError if the folder does not exist, or if other users may write to it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & OTHERS_MAY_WRITE:
        os.close(descriptor)
        raise PermissionError(f"{path} is not ours alone")
    return descriptor


def read_file(folder: int, name: str) -> bytes | None:
    """Return the content of a file in an open folder, or None if the file is not a regular file that belongs to this
    user. Raises OSError.
    """
    # Without O_NONBLOCK, open() would wait if the file is a FIFO.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb", buffering=0) as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        content = file.read(LONGEST + 1)
    return content if len(content) <= LONGEST else None


def put(folder: int, name: str, flags: int, content: bytes) -> None:
    """Write *content* to a file in an open folder, opened with *flags*. Raises OSError."""
    descriptor = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o600, dir_fd=folder)
    with open(descriptor, "wb") as file:
        file.write(content)


def take(folder: int, name: str) -> bytes | None:
    """Read and delete a file in an open folder. If two processes take the same file at once, only one of them gets the
    content. Raises OSError.
    """
    taken = f"{name}.{os.getpid()}"
    os.rename(name, taken, src_dir_fd=folder, dst_dir_fd=folder)
    try:
        return read_file(folder, taken)
    finally:
        os.unlink(taken, dir_fd=folder)
