"""Who else may write what runs here: the configuration, its variables, the handlers, the database, and their folders.

As cron and ssh look at theirs: a tick of root's refuses what everybody may write, since anybody could then run code as
root; ``cronjobs check`` reports what else is unusual.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cronjobs.engine.config.settings import Settings
from cronjobs.errors import CronjobsError

VARIABLE: Final = "CRONJOBS_TRUST_FILES"  # for the YAML itself: whoever can write it could write trust_files, too


class UntrustedFiles(CronjobsError):
    """Somebody else may write what this tick, which is root's, would run."""

    exit_code = 3

    def __init__(self, findings: Iterable[TrustFinding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        return [
            f"{found.path} {found.what}, and this tick runs as root: {found.cure}; if it is meant, "
            + (f"set {VARIABLE}=1 in the crontab" if found.is_file_itself else "write run: {trust_files: true}")
            for found in self.findings
        ]


@dataclass(frozen=True)
class Facts:
    """What stat says of a file or folder; ``members``: who else is in its group."""

    mode: int
    owner: int
    is_folder: bool
    members: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TrustFinding:
    """``refused``: root's tick does not run with it. ``is_file_itself``: the YAML, or a folder that it lies in."""

    path: Path
    what: str
    cure: str
    refused: bool
    is_file_itself: bool = False


def judge(facts: Facts, me: int) -> tuple[str, str, bool] | None:
    """What is loose about a file, what to do, and whether root's tick refuses it; None: nothing. *me*: this user's id.

    In a sticky folder, such as /tmp, nobody but its owner can replace a file.
    """
    sticky = facts.is_folder and facts.mode & stat.S_ISVTX
    if facts.mode & stat.S_IWOTH and not sticky:
        return f"can be written by everybody (mode {stat.S_IMODE(facts.mode):04o})", "chmod o-w", True
    if facts.mode & stat.S_IWGRP and facts.members and not sticky:
        who = ", ".join(sorted(facts.members)[:3]) + (", …" if len(facts.members) > 3 else "")
        return f"can be written by its group ({who}; mode {stat.S_IMODE(facts.mode):04o})", "chmod g-w", True
    if facts.owner not in (me, 0):
        return f"belongs to another user ({_user(facts.owner)})", "chown it", False
    return None


def require(settings: Settings, environ: Mapping[str, str], me: int | None = None) -> None:
    """Raise UntrustedFiles if this process is root's and others may write what it would run."""
    user = os.geteuid() if me is None else me
    if user != 0:
        return
    trusted = bool(environ.get(VARIABLE))
    refused = [
        found
        for found in look(settings, 0)
        if found.refused and not (trusted if found.is_file_itself else trusted or settings.run.trust_files)
    ]
    if refused:
        raise UntrustedFiles(refused)


def look(settings: Settings, me: int, facts_of: Callable[[Path], Facts | None] | None = None) -> list[TrustFinding]:
    """What is loose about the files of *settings*, each file and folder once."""
    facts_of = facts_of or _facts
    found: list[TrustFinding] = []
    own = [settings.file, *settings.file.parents]
    for path in dict.fromkeys([*own, *_with_folders(_files(settings))]):
        facts = facts_of(path)
        judged = None if facts is None else judge(facts, me)
        if judged is not None:
            what, cure, refused = judged
            found.append(TrustFinding(path, what, f"{cure} {path}", refused, path in own))
    return found


def _files(settings: Settings) -> Iterator[Path]:
    if settings.env_file is not None:
        yield settings.env_file
    prefix = "sqlite:///"
    if settings.database.startswith(prefix):
        yield Path(settings.database.removeprefix(prefix).partition("?")[0])
    modules = [*settings.imports, *settings.extras, *([settings.setup.rpartition(".")[0]] if settings.setup else [])]
    modules += [name.partition(":")[0] for name in settings.around]
    for folder in (settings.folder, *settings.python_path):
        yield folder
        for module in modules:
            yield from _module_files(folder, module)


def _module_files(folder: Path, module: str) -> Iterator[Path]:
    """The files under *folder* that importing *module* would run; found by name, so that nothing runs yet."""
    for name in module.split("."):
        yield folder / f"{name}.py"
        folder = folder / name
        yield folder / "__init__.py"


def _with_folders(files: Iterable[Path]) -> Iterator[Path]:
    """*files* and all folders above them: who may write a folder may put another file in its place."""
    for file in files:
        yield file
        yield from file.parents


def _facts(path: Path) -> Facts | None:
    try:
        found = path.stat()
    except OSError:
        return None
    members = _members(found.st_gid, found.st_uid) if found.st_mode & stat.S_IWGRP else frozenset()
    return Facts(found.st_mode, found.st_uid, stat.S_ISDIR(found.st_mode), members)


def _members(group: int, owner: int) -> frozenset[str]:
    """Who is in *group*, but its *owner* and root."""
    try:
        listed = set(grp.getgrgid(group).gr_mem)
    except KeyError:
        listed = set()
    listed |= {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == group}
    return frozenset(listed - {_user(owner), "root"})


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
