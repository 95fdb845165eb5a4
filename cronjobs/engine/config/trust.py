"""Decide what root trusts: a process that runs as root must not run code that an untrusted user could have written.

cron and sshd have the same rule for their files. Whoever can write to a file could have written it: its owner, its
group if it is group-writable, and everyone if it is world-writable. The same rule applies to each folder and each link
on the path to the file. Root and the users that ``run.trust_files`` names are trusted. For the configuration file
itself, only $CRONJOBS_TRUST_FILES counts, because an untrusted user who wrote that file could name anybody in it.

``require`` checks the files that the configuration reads, names and starts. This check runs before any user code, so it
finds the modules by their names. ``import_path`` later checks every further module as soon as the import system has
found its file.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from cronjobs.engine.config.settings import CommandChannel, Settings, Trust
from cronjobs.errors import CronjobsError
from cronjobs.text import one_line

VARIABLE: Final = "CRONJOBS_TRUST_FILES"
MOST_LINKS: Final = 40  # the limit for one path, see path_resolution(7)
# A message lists at most this many paths, and counts the rest: "and 4 more".
NAMED: Final = 3
PYCACHE: Final = "__pycache__"

# A script that a command runs with one of these is code, too, so it is checked like a program.
INTERPRETERS: Final = re.compile(r"(?:ba|da|k|z)?sh|python[0-9.]*|perl|ruby|node|php")


class UntrustedFiles(CronjobsError):
    """An untrusted user may have written code that this process would run as root."""

    exit_code = 3

    def __init__(self, findings: Iterable[TrustFinding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        return refusals(self.findings)


@dataclass(frozen=True)
class Facts:
    """A path's owner and mode, as lstat reports them, and its group's ``members``, without the owner and root."""

    mode: int
    owner: int
    is_folder: bool
    members: frozenset[str] = frozenset()
    is_link: bool = False


@dataclass(frozen=True)
class TrustFinding:
    """A path to which ``users`` can write. If ``users`` is empty, everybody can write to it.

    ``owner`` is the path's owner, or "" if the owner is trusted. If ``refused`` is True, ``require`` raises
    UntrustedFiles. ``trusting`` says what the user must write if the access is intended.
    """

    path: Path
    what: str
    cures: tuple[str, ...]
    refused: bool
    users: frozenset[str] = frozenset()
    owner: str = ""
    is_file_itself: bool = False
    trusting: str = ""


def judge(
    path: Path,
    facts: Facts,
    me: int,
    trusted: Collection[str] = (),
    *,
    is_code: bool = True,
    is_added_to: bool = False,
) -> TrustFinding | None:
    """Return who else can write to *path* besides root, the user *me* and the users *trusted*, or None if nobody can.

    In a sticky folder such as /tmp, only a file's owner can replace the file. If *is_added_to* is True, we would also
    run new files in the folder, which the sticky bit does not prevent. If *is_code* is False, *path* is data. Root may
    use data files that other users own, just as it runs jobs that other users enqueue.
    """
    sticky = facts.is_folder and facts.mode & stat.S_ISVTX and not is_added_to
    written = 0 if facts.is_link or sticky else facts.mode
    mode = f"mode {stat.S_IMODE(facts.mode):04o}"
    if written & stat.S_IWOTH:
        return TrustFinding(path, f"is writable by everyone ({mode})", ("chmod o-w",), True)
    what, cures = [], []
    owner = "" if facts.owner in (me, 0) or {str(facts.owner), _user(facts.owner)} & {*trusted} else _user(facts.owner)
    members = facts.members.difference(trusted) if written & stat.S_IWGRP else frozenset[str]()
    if owner:
        what.append(f"belongs to {owner}")
        # Nobody can review a .pyc file, so advise the user to remove one that somebody else owns. Root's Python writes
        # a new one.
        cures.append("rm" if path.suffix == ".pyc" else f"chown {_user(me)}")
    if members:
        who = ", ".join(sorted(members)[:3]) + (", …" if len(members) > 3 else "")
        what.append(f"is writable by its group ({who}; {mode})")
        cures.append("chmod g-w")
    if not what:
        return None
    users = members | ({owner} if owner else set())
    refused = bool(members) or (me == 0 and is_code)
    return TrustFinding(path, " and ".join(what), tuple(cures), refused, frozenset(users), owner)


def refusals(findings: Iterable[TrustFinding]) -> list[str]:
    """Return one message per kind of finding: the paths, who could make root run code there, and what to do."""
    kinds: dict[tuple[str, str], list[TrustFinding]] = {}
    findings = list(findings)
    for found in findings:
        # If root must trust these users for the configuration file anyway, that setting covers their other files too.
        itself = (other.trusting for other in findings if other.is_file_itself and found.users == other.users)
        kinds.setdefault((found.what, next(itself, found.trusting)), []).append(found)
    return [_refusal(what, trusting, kind) for (what, trusting), kind in kinds.items()]


def _refusal(what: str, trusting: str, kind: list[TrustFinding]) -> str:
    paths, owner = [str(found.path) for found in kind], kind[0].owner
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    cures, content = kind[0].cures, "the file contains"
    cure = " and ".join(f"{each} {paths[0]}" for each in cures)
    if len(paths) > 1:
        what = what.replace("belongs", "belong", 1).replace("is writable", "are writable", 1)
        cure, content = f"run {' and '.join(cures)} on each of them", "the files contain"
    if owner and cures[0].startswith("chown"):
        cure = f"run this command as {owner}, or check what {content}, then {cure}"
    said = (
        f"{', '.join(paths[:NAMED])}{more} {what}, but this command runs as root: {cure}; if that is intended, "
        f"{trusting}"
    )
    return one_line(said, 4000)


# --- which paths are checked ------------------------------------------------------------------------------------------


def require(settings: Settings, environ: Mapping[str, str], me: int | None = None, *, programs: bool = False) -> None:
    """Raise UntrustedFiles if this process runs as root and other users may have written what it would run.

    With *programs*, the programs of the file's commands are checked, too.
    """
    user = os.geteuid() if me is None else me
    if user == 0:
        _refuse(look(settings, environ, 0, programs=programs))


def require_files(files: Iterable[Path], settings: Settings, environ: Mapping[str, str]) -> None:
    """Raise UntrustedFiles if a user whom root does not trust may have written any of *files*."""
    _refuse(_judged(files, settings, environ, 0))


def _refuse(findings: Iterable[TrustFinding]) -> None:
    if refused := [found for found in findings if found.refused]:
        raise UntrustedFiles(refused)


def look(settings: Settings, environ: Mapping[str, str], me: int, *, programs: bool = True) -> list[TrustFinding]:
    """Return a finding for each path that *settings* make us run and an untrusted user can write to."""
    files = [settings.file, *settings.contents, *_modules(settings)]
    if settings.env_file is not None:
        files.append(settings.env_file)
    added_to = set()
    for file in _programs(settings, environ) if programs else ():
        files.append(file)
        if not file.exists():
            added_to.add(_folder_of(file))
    found = list(_judged(files, settings, environ, me, added_to=added_to))
    prefix = "sqlite:///"
    if settings.database.startswith(prefix):
        database = Path(settings.database.removeprefix(prefix).partition("?")[0])
        seen = {each.path for each in found}
        data = _judged([database], settings, environ, me, is_code=False)
        found += [each for each in data if each.path not in seen]
    return found


def _judged(
    files: Iterable[Path],
    settings: Settings,
    environ: Mapping[str, str],
    me: int,
    *,
    is_code: bool = True,
    added_to: Collection[Path] = (),
) -> Iterator[TrustFinding]:
    """Yield a finding for each file, folder and link on the paths to *files* that an untrusted user can change."""
    by_variable, by_file = _names(environ.get(VARIABLE, "")), settings.run.trust_files
    if settings.trusted or by_variable is True:
        return
    own = {*way_to(settings.file)}
    for path in dict.fromkeys(path for file in files for path in way_to(file)):
        itself = path in own
        named = () if itself else by_file
        if named is True or (facts := _facts(path)) is None:
            continue
        added = path in added_to or path.name == PYCACHE
        found = judge(path, facts, me, {*by_variable, *named}, is_code=is_code, is_added_to=added)
        if found is not None:
            names = sorted({*(by_variable if itself else named), *found.users})
            yield replace(found, is_file_itself=itself, trusting=_trusting(itself, names if found.users else []))


def _names(said: str) -> Trust:
    """Return the users in *said*, the variable's value ("deploy,www-data"), or True if the value trusts everybody."""
    return True if said in ("1", "true") else tuple(said.replace(",", " ").split())


def _trusting(itself: bool, names: list[str]) -> str:
    """Return what the user must write to trust the users *names*, or to trust everybody if *names* is empty."""
    if itself:
        return f"set {VARIABLE}={','.join(names) or 1} in the crontab, or in your shell if you run the command by hand"
    trusted = f"[{', '.join(names)}]" if names else "true"
    return f'write "run: {{trust_files: {trusted}}}"'


def _modules(settings: Settings) -> Iterator[Path]:
    """Yield the import folders, and the files that an import of the configuration's modules would run."""
    modules = [*settings.imports, *settings.extras, *([settings.setup.rpartition(".")[0]] if settings.setup else [])]
    modules += [name.partition(":")[0] for name in settings.around]
    for folder in (settings.folder, *settings.python_path):
        yield folder
        for module in modules:
            yield from _module_files(folder, module)


def _module_files(folder: Path, module: str) -> Iterator[Path]:
    """Yield the files under *folder* that an import of *module* would run. They are found by name; nothing is run."""
    for name in module.split("."):
        for source in (folder / f"{name}.py", folder / name / "__init__.py"):
            if source.exists():
                yield from (source, Path(cache_from_source(str(source))))
        folder = folder / name
        yield folder


def _programs(settings: Settings, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the programs of all commands, and the scripts that commands pass to an interpreter."""
    path = dict(settings.env).get("PATH") or environ.get("PATH") or os.defpath
    for entry in settings.job_types.values():
        if entry.command is not None:
            own = dict(entry.env).get("PATH") or path
            yield from _program(entry.command, entry.run_in or settings.folder, own)
    for channel in settings.alerts.channels.values() if settings.alerts is not None else ():
        if isinstance(channel.way, CommandChannel):
            yield from _program(channel.way.arguments, settings.folder, path)


def _program(arguments: tuple[str, ...], folder: Path, path: str) -> Iterator[Path]:
    """Yield the paths at which execvp(3) looks for the program, and the script that an interpreter runs."""
    program = arguments[0]
    for place in [folder] if "/" in program else [folder / each for each in path.split(os.pathsep)]:
        file = place / program
        if not _is_our_interpreters(file):
            yield file
        if file.is_file() and os.access(file, os.X_OK):
            break
    if INTERPRETERS.fullmatch(Path(program).name):
        script = next((argument for argument in arguments[1:] if not argument.startswith("-")), None)
        if script is not None and (folder / script).is_file():
            yield folder / script


def _is_our_interpreters(file: Path) -> bool:
    """Return whether *file* is the interpreter that runs this process, or a file of its virtual environment."""
    venv = sys.prefix != sys.base_prefix and file.is_relative_to(sys.prefix)
    return venv or os.path.realpath(file) == os.path.realpath(sys.executable)


def way_to(path: Path) -> Iterator[Path]:
    """Yield each folder, link and file that the kernel visits to open *path*, starting at the root."""
    here, links = Path("/"), 0
    left = deque(path.absolute().parts[1:])
    yield here
    while left:
        name = left.popleft()
        here = here.parent if name == ".." else here / name
        yield here
        try:
            target = here.readlink()
        # OSError: *here* is not a link, or does not exist. ValueError: the path contains a NUL.
        except (OSError, ValueError):
            continue
        links += 1
        if links > MOST_LINKS:
            return
        here = Path("/") if target.is_absolute() else here.parent
        left.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))


def _folder_of(file: Path) -> Path:
    """Return the existing folder in which someone would have to create something to make *file* exist."""
    folder = Path(os.path.realpath(file.parent))
    while not folder.exists():
        folder = folder.parent
    return folder


def _facts(path: Path) -> Facts | None:
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    is_link = stat.S_ISLNK(found.st_mode)
    by_group = found.st_mode & stat.S_IWGRP and not is_link
    members = _members(found.st_gid, found.st_uid) if by_group else frozenset[str]()
    return Facts(found.st_mode, found.st_uid, stat.S_ISDIR(found.st_mode), members, is_link)


def _members(group: int, owner: int) -> frozenset[str]:
    """Return the members of *group*, except the file's *owner* and root."""
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
