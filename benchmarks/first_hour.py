"""Measure a new user's first hour: the commands, seconds and files, with the real cron daemon of this machine.

    python benchmarks/first_hour.py --python python3.13 [--app | --crontab]

The script makes an environment with that Python, and installs this checkout and, from the package index, FastAPI. Then
it types the commands of the tutorials: for an existing FastAPI app until cron has run its first job, and for a crontab
of twelve lines until cronjobs has taken it over. It needs root and cron. Whatever happens, it restores the crontab, and
it ends the cron daemon if it has started one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 400

APP = {
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1"\ndependencies = ["fastapi", "sqlalchemy"]\n',
    ".env": "DATABASE_URL=sqlite:///shop.db\n",
    "shop/__init__.py": "",
    "shop/main.py": (
        "import os\nfrom fastapi import FastAPI\nfrom sqlalchemy import create_engine\n"
        'engine = create_engine(os.environ["DATABASE_URL"])\napp = FastAPI()\n'
    ),
}
LINES = """\
MAILTO=ops@example.com
PATH=/usr/local/bin:/usr/bin:/bin
# twelve lines, as they are found in crontabs
17 *    * * *   cd / && run-parts --report /etc/cron.shop.hourly
25 6    * * *   test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.shop.daily; }
*/5 * * * *     [ -x /usr/bin/true ] && /usr/bin/true > /dev/null 2>&1
0 3 * * 1-5     tar czf /tmp/backup-$(date +\\%F).tgz /etc/hostname
30 2 * * *      find /tmp/shop-cache -mtime +7 -delete
0 22 * * 5      cat > /tmp/shop-mail%Dear Joe,%the week is saved.
@daily          echo daily
@hourly         echo hourly | logger -t shop
15 14 1 * *     echo monthly
0 9 * jan,jul mon  echo half-yearly
5,35 8-18/2 * * *  echo office
10 4 * * sun    sleep 0
"""


class Terminal:
    """Types commands in a folder, and records how long each took."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder = folder
        self.path = f"{environment / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin"
        self.typed: list[tuple[str, float]] = []

    def type(self, command: str, *, counts: bool = True) -> str:
        start = time.monotonic()
        # Like a new user's shell, set none of our variables.
        environ = {"PATH": self.path, "HOME": os.environ["HOME"], "LANG": "C.UTF-8"}
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            sys.exit(f"$ {command}\n{done.stdout}{done.stderr}(exit code {done.returncode})")
        if counts:
            self.typed.append((command, time.monotonic() - start))
            print(f"  {self.typed[-1][1]:6.1f} s  $ {command}", flush=True)
        return done.stdout


def app(folder: Path, environment: Path) -> None:
    print("an existing FastAPI app, until cron has run its first job:")
    for name, text in APP.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = set(folder.rglob("*"))
    terminal = Terminal(folder, environment)
    start = time.monotonic()
    terminal.type("cronjobs init")
    new = sorted(str(file.relative_to(folder)) for file in set(folder.rglob("*")) - before if file.is_file())
    terminal.type("cronjobs crontab install")
    terminal.type("cronjobs enqueue hello")
    while time.monotonic() - start < PATIENCE_S:
        [job] = json.loads(terminal.type("cronjobs jobs list --json --type hello --limit 1", counts=False))
        if job["status"] == "succeeded":
            print(f"  {time.monotonic() - start:6.1f} s  until cron had run it, {len(terminal.typed)} commands")
            print(f"  files that init wrote: {', '.join(new)}; edited by hand: none")
            return
        time.sleep(0.5)
    sys.exit(f"cron has not run it within {PATIENCE_S} s")


def taken_over(folder: Path, environment: Path) -> None:
    print("a crontab of twelve lines, taken over, compared, swapped, and given back:")
    subprocess.run(["crontab", "-"], input=LINES, text=True, check=True)
    terminal = Terminal(folder, environment)
    for command in ("import", "compare", "swap", "restore"):
        said = terminal.type(f"cronjobs crontab {command}").strip().splitlines()
        print(f"            {said[0] if command != 'import' else said[-2]}")
    if subprocess.run(["crontab", "-l"], capture_output=True, text=True).stdout != LINES:
        sys.exit("restore did not give the crontab back byte for byte")


@contextmanager
def real_cron() -> Iterator[None]:
    """Start the cron daemon if needed, and empty the crontab. Undo both at the end."""
    before = subprocess.run(["crontab", "-l"], capture_output=True)
    subprocess.run(["crontab", "-"], input=b"", check=True)
    running = subprocess.run(["pgrep", "-x", "cron"], capture_output=True).returncode == 0
    daemon = None if running else subprocess.Popen(["cron", "-f"])
    try:
        yield
    finally:
        if before.returncode == 0:
            subprocess.run(["crontab", "-"], input=before.stdout, check=True)
        else:
            subprocess.run(["crontab", "-r"], check=False, stderr=subprocess.DEVNULL)
        if daemon is not None:
            daemon.terminate()
            daemon.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--app", action="store_true", help="only the app")
    parser.add_argument("--crontab", action="store_true", help="only the crontab")
    given = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ("cron", "crontab"))):
        sys.exit("this needs root, and Debian's cron: apt-get install cron")
    with tempfile.TemporaryDirectory(prefix="first-hour-") as temporary, real_cron():
        environment = Path(temporary) / "venv"
        start = time.monotonic()
        subprocess.run([given.python, "-m", "venv", environment], check=True)
        subprocess.run([environment / "bin/pip", "install", "-q", str(ROOT), "fastapi"], check=True)
        version = subprocess.run([environment / "bin/python", "-V"], capture_output=True, text=True).stdout.strip()
        print(f"{version}: {time.monotonic() - start:.1f} s to make an environment and install", flush=True)
        for play in [app] * (not given.crontab) + [taken_over] * (not given.app):
            folder = Path(temporary) / play.__name__
            folder.mkdir()
            play(folder, environment)


if __name__ == "__main__":
    main()
