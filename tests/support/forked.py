"""Processes of ``python -m cronjobs`` and of Dask for tests, forked from a process that has imported everything.

It takes half a second of a core to start an interpreter and import everything, and the tests start thousands of
processes. A fork takes some milliseconds. A forked process is like any other, with its own pid, start time,
environment, descriptors and end. It can be killed and frozen. Only its imports are already done. Tests start a real
interpreter if they test the start itself, or if the environment has a variable for the interpreter. With
CRONJOBS_TESTS_FRESH=1, they always do. This file is also the program that forks.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

HEAD: Final = 8  # a length, and a pid, are sent in this many bytes
DASK: Final = ("distributed.cli.dask_scheduler", "distributed.cli.dask_worker")
FOR_THE_INTERPRETER: Final = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_")
UNDERSTOOD: Final = {"stdin", "stdout", "stderr", "cwd", "env", "text", "start_new_session"}
ALWAYS_FRESH: Final = bool(os.environ.get("CRONJOBS_TESTS_FRESH"))


def start(argv: Sequence[str], *, fresh: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """Do what ``subprocess.Popen(argv, …)`` does, but fork if that makes no difference. If *fresh*, do not fork."""
    if fresh or ALWAYS_FRESH or _program(argv) is None or not options.keys() <= UNDERSTOOD or not _plain(options):
        return subprocess.Popen(argv, **options)
    return Forked(argv, **options)


def prepare() -> None:
    """Start this process's Forker, so that the first ``start`` takes no longer than the others."""
    _forker("cronjobs")


def run(argv: Sequence[str], *, within_s: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Start a process and wait for its end. Its output is text. Without ``env``, it gets this process's environment."""
    given: dict[str, Any] = {"env": environment(), "stdin": subprocess.DEVNULL}
    process = start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **(given | options))
    try:
        out, err = process.communicate(timeout=within_s)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def environment() -> dict[str, str]:
    """Return this process's environment, without variables that only affect the start of an interpreter."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOR_THE_INTERPRETER)}
    return env | _environment()


def _program(argv: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the module that ``python -m`` runs and its arguments. For any other command, return None."""
    executable, *words = [str(word) for word in argv]
    kept = words[:1] if words[:1] == ["-P"] else []
    dash, module, *arguments = [*words[len(kept) :], "", ""]
    if executable != sys.executable or dash != "-m" or module not in ("cronjobs", *DASK):
        return None
    return module, kept + arguments[:-2]


def _plain(options: Mapping[str, Any]) -> bool:
    """Whether a forked process can have these options, which must not concern an interpreter's start or a terminal."""
    env = options.get("env")
    if env is None or _told(env) != _told(_environment()):
        return False
    given = [options.get(name) for name in ("stdin", "stdout", "stderr")]
    descriptors = [each if isinstance(each, int) else each.fileno() for each in given if each is not None]
    return not any(descriptor >= 0 and os.isatty(descriptor) for descriptor in descriptors)


def _told(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(FOR_THE_INTERPRETER)}


def _environment() -> dict[str, str]:
    """Return cron's environment, with the path of the package to test if that is not the installed one."""
    return {"PATH": "/usr/bin:/bin"} | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}


# --- the tests' side --------------------------------------------------------------------------------------------------


class Forked(subprocess.Popen[Any]):
    """A Popen whose process is a child of the forking process. The forking process reports its end through a pipe."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        _, _, _, _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = rest
        streams = [given if given >= 0 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        program = _program(args)
        assert program is not None
        module, words = program
        order = {
            "module": module,
            "words": words,
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(env),
            "session": bool(rest[-2]),
            "umask": _umask(),
        }
        self.pid, self._end = _forker("dask" if module in DASK else "cronjobs").fork(order, streams)
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        )

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        self._look(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not self._look(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _look(self, timeout: float | None) -> bool:
        """Wait at most that many seconds for the end (None means forever). Return whether the process has ended."""
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is not None:
                return True
            if not select.select([self._end], [], [], timeout)[0]:
                return False
            told = os.read(self._end, HEAD)
            os.close(self._end)
            self.returncode = int.from_bytes(told, "little", signed=True) if told else -signal.SIGKILL
            return True


def _umask() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


class Forker:
    """The process that forks processes of one *kind*, and the connection to it."""

    def __init__(self, kind: str) -> None:
        ours, theirs = socket.socketpair()
        argv = [sys.executable, __file__, str(theirs.fileno()), kind]
        self._process = subprocess.Popen(
            argv,
            env=_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._line, self._lock = ours, threading.Lock()
        _read(ours, HEAD)  # it has imported what its children need

    def fork(self, order: dict[str, Any], streams: list[int]) -> tuple[int, int]:
        """Fork. Return the pid, and a descriptor through which the end is reported."""
        text = json.dumps(order).encode()
        end, told = os.pipe()
        with self._lock:
            socket.send_fds(self._line, [len(text).to_bytes(HEAD, "little")], [*streams, told])
            self._line.sendall(text)
            os.close(told)
            pid = int.from_bytes(_read(self._line, HEAD), "little")
        return pid, end

    def close(self) -> None:
        self._line.close()
        self._process.wait(60)


_made: dict[str, Forker] = {}
_making = threading.Lock()


def _forker(kind: str) -> Forker:
    """Return this process's Forker of that *kind*. It is made when it is first needed."""
    with _making:
        if kind not in _made:
            _made[kind] = Forker(kind)
            atexit.register(_made[kind].close)
        return _made[kind]


def _read(line: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        more = line.recv(length - len(found))
        if not more:
            raise EOFError
        found += more
    return found


# --- the process that forks -------------------------------------------------------------------------------------------


def serve(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork on each request, and report each end.

    In a child, return the program that it has to become, and its descriptors.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    ends: dict[int, int] = {}
    line.sendall(bytes(HEAD))
    while True:
        awaited: list[Any] = [line, woken]
        ready, _, _ = select.select(awaited, [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(ends)
        if line in ready:
            head, streams, _, _ = socket.recv_fds(line, HEAD, 4)
            if not head:
                raise EOFError
            order = json.loads(_read(line, int.from_bytes(head, "little")))
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return order, streams[:3]
            ends[pid] = streams.pop()
            for descriptor in streams:
                os.close(descriptor)
            line.sendall(pid.to_bytes(HEAD, "little"))


def _tell_ends(ends: dict[int, int]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        end = ends.pop(pid)
        try:
            os.write(end, os.waitstatus_to_exitcode(status).to_bytes(HEAD, "little", signed=True))
        except BrokenPipeError:  # the requester is gone
            pass
        os.close(end)


def become(order: dict[str, Any], streams: list[int]) -> None:
    """Become ``python -m cronjobs …`` or another module, with the same surroundings as a started process."""
    import runpy
    import time

    if order["session"]:
        os.setsid()
    kept = [os.dup(stream) for stream in streams]  # a stream may have the number at which another one belongs
    for number, descriptor in enumerate(kept):
        os.dup2(descriptor, number)
    os.closerange(3, max(os.sysconf("SC_OPEN_MAX"), 0) if os.sysconf("SC_OPEN_MAX") < 65536 else 65536)
    os.umask(order["umask"])
    os.chdir(order["cwd"])
    # set by the interpreter (PEP 538)
    coerced = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    os.environ.clear()
    os.environ.update(order["env"] | coerced)
    time.tzset()
    words = order["words"]
    if words[:1] == ["-P"]:
        words = words[1:]
    else:
        sys.path.insert(0, order["cwd"])
    sys.argv = ["-m", *words]
    _open_standard_streams()
    try:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        _leave(end)


def _open_standard_streams() -> None:
    """Open the standard streams again, as an interpreter does: the old ones remember the abilities of another file."""
    import io

    for name, mode in (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb")):
        old = getattr(sys, name)
        raw = open(old.fileno(), mode, closefd=False)  # noqa: SIM115  # stays open as long as the process lives
        new = io.TextIOWrapper(
            raw,
            old.encoding,
            old.errors,
            newline=None if mode == "rb" else "\n",
            line_buffering=name == "stderr",
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _leave(end: SystemExit) -> NoReturn:
    """Do what an interpreter does at its end, but leave alone what this process shares with the forking process."""
    if not isinstance(end.code, int | None):
        raise end
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    code = end.code or 0
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        code = 120
    os._exit(code)


def load() -> None:
    """Import everything that a command may need, but no module that is run as a script."""
    import contextlib
    import importlib
    import io
    import pkgutil

    import cronjobs
    from cronjobs.engine.jobs import registry
    from cronjobs.installed import if_installed
    from support import nofsync

    nofsync.install()
    ours = [module.name for module in pkgutil.walk_packages(cronjobs.__path__, "cronjobs.")]
    scripts = {"cronjobs.__main__", "cronjobs.engine.execution.launcher"}
    others = ["croniter", "zoneinfo", "asyncio", "getpass", "sqlite3", "psycopg", "typer.rich_utils"]
    others += ["sqlalchemy.dialects.sqlite.pysqlite", "sqlalchemy.dialects.postgresql.psycopg"]
    # Leave out models, which need a Django project, and Dask, which is so large that it would slow down each fork. The
    # demo and the drill start the program again.
    left_out = ("cronjobs.alembic", *(f"cronjobs.contrib.{each}" for each in ("django", "dask.dask", "demo", "drill")))
    for name in (*others, *ours):
        if name not in scripts and not name.startswith(left_out):
            importlib.import_module(name)
    if (desk := if_installed("cronjobs.desk.cli.main")) is not None:
        from typer.main import get_command

        with contextlib.redirect_stdout(io.StringIO()):  # typer imports pydantic when it reads its first arguments
            get_command(desk.app).main(["next", "0 2 * * *", "-n", "1"], standalone_mode=False)
    assert not registry.registered(), "a job type that no project has"


def load_dask() -> None:
    """Import what Dask's scheduler and workers import."""
    import importlib

    for name in ("deploy.utils", "nanny", "preloading", "proctitle", "scheduler", "worker"):
        importlib.import_module(f"distributed.{name}")
    assert threading.active_count() == 1, "a fork would leave a thread behind"


def main() -> None:
    import gc

    line = socket.socket(fileno=int(sys.argv[1]))
    sys.path[0] = str(Path(__file__).parents[1])
    {"cronjobs": load, "dask": load_dask}[sys.argv[2]]()
    del sys.path[0]
    gc.freeze()
    try:
        order, streams = serve(line)
    except (EOFError, KeyboardInterrupt):  # the tests are over
        return
    line.detach()  # become() closes it, with all other descriptors
    become(order, streams)


if __name__ == "__main__":
    main()
