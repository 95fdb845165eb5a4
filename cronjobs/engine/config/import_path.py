"""Prepare to import the user's modules: set the import path and environment, and check whether root may run them."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

import cronjobs
from cronjobs.engine.config import trust
from cronjobs.engine.config.settings import Settings
from cronjobs.errors import ConfigError, Problem

MODULE: Final = "DJANGO_SETTINGS_MODULE"


def prepare_imports(settings: Settings) -> None:
    """Set the file's environment variables, and put its folders on the import path, with all links resolved.

    If a deploy moves a link to the next release, this process goes on with the modules of its own release.

    Every command that runs user code calls this first. Raises UntrustedFiles if the process runs as root and an
    untrusted user may have written some of that code.
    """
    trust.require(settings, os.environ)
    if os.geteuid() == 0:
        _watched.by(settings, os.environ)
    os.environ.update(variables(settings.env, os.environ))
    for folder in map(os.path.realpath, (*reversed(settings.python_path), settings.folder)):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def variables(env: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the file and its env_file set in a process that starts with *environ*.

    Variables under ``env:``, such as PATH, override those of the environment. The exception is DJANGO_SETTINGS_MODULE:
    the environment takes precedence, as in manage.py, so that an app does not enqueue into one database while ticks
    read another. *env* contains a variable from an env_file only if the environment lacks the variable.
    """
    found = dict(env)
    if MODULE in found and environ.get(MODULE):
        found[MODULE] = environ[MODULE]
    return found


def enter_folder(settings: Settings) -> None:
    """Make the file's folder the working directory, so that relative paths in user code start from there.

    A command that runs handlers calls this after it has read the paths on its own command line. Raises ConfigError.
    """
    try:
        os.chdir(settings.folder)
    except OSError as error:
        what = f"the folder {settings.folder} cannot be entered: {error.strerror or error}"
        raise ConfigError([Problem(str(settings.file), 0, 0, "", what)]) from None


class RefusingExit:
    """A block in which the user's modules are imported. In it, ``os._exit`` raises SystemExit, as ``sys.exit`` does.

    A module that really ended the process would end each command that imports it without a word, even ``check --live``.
    In a forked copy, and after the block, ``os._exit`` works as always, also for a module that has kept a reference to
    it.
    """

    def __enter__(self) -> None:
        self._really, pid, self._is_over = os._exit, os.getpid(), False

        def exit_or_refuse(status: int) -> NoReturn:
            if self._is_over or os.getpid() != pid:
                self._really(status)
            raise SystemExit(f"os._exit({status}) was called")

        os._exit = exit_or_refuse

    def __exit__(self, *_: object) -> None:
        self._is_over, os._exit = True, self._really


class _Watched:
    """An import hook that refuses a module if an untrusted user may have written it.

    For each module, the hook asks the other finders where the module's file is. A check of ``sys.modules`` after the
    import would be too late, because the code has run by then. A check of every file in the import folders beforehand
    would refuse uploads and caches that nobody imports, and would miss modules in other folders. The hook sees every
    module that is really imported, even if a handler imports it later.
    """

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.environ: Mapping[str, str] = {}

    def by(self, settings: Settings, environ: Mapping[str, str]) -> None:
        """Check all imports from now on, and trust only the users that *settings* and *environ* name."""
        self.settings, self.environ = settings, dict(environ)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            if (spec := finder.find_spec(name, path, target)) is not None:
                assert self.settings is not None
                trust.require_files(_files(spec), self.settings, self.environ)
                return spec
        return None


_watched: Final = _Watched()


def _files(spec: ModuleSpec) -> Iterator[Path]:
    """Yield the paths that importing *spec* would run or search, except paths of Python and of installed packages."""
    places = [spec.origin, spec.cached] if spec.has_location else [*(spec.submodule_search_locations or ())]
    for place in places:
        if place is None:
            continue
        # Do not use resolve(), which follows links. We have not checked the links yet, so an untrusted user could make
        # one of them point into an installed package.
        file = Path(os.path.abspath(place))  # noqa: PTH100
        if not is_installed(file):
            yield file


def is_installed(file: Path) -> bool:
    """Whether *file* belongs to Python or to an installed package."""
    return any(file.is_relative_to(folder) for folder in _INSTALLED)


_FOLDERS: Final = (
    Path(os.__file__).parent,
    Path(cronjobs.__file__).parent,
    *map(Path, [*site.getsitepackages(), site.getusersitepackages()]),
)
_INSTALLED: Final = frozenset(folder for each in _FOLDERS for folder in (each, each.resolve()))
