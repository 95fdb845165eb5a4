"""Writes ``as_cron_ran_them.json``: what Debian's cron gave to each line of these crontabs, and what the lines left.

    PYTHONPATH=tests python -m support.crontabs.capture    # as root, on Debian with cron; takes up to two minutes

Each crontab belongs to a user of its own, made and removed here. All lines are due in one minute: only their times are
changed. A daemon is started for that minute unless one runs.
"""

from __future__ import annotations

import json
import pwd
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from support.crontabs.sandbox import CRONTABS, HERE, furnish, left

SETTING = re.compile(r"\s*[\"']?\w+[\"']?\s*=")
TIMES = re.compile(r"(@\w+|(\S+\s+){4}\S+)\s+")


def due_each_minute(crontab: str) -> str:
    lines = []
    for line in crontab.splitlines():
        if line.startswith("@reboot"):
            continue
        if not line.startswith("#") and line.strip() and not SETTING.match(line):
            line = TIMES.sub("* * * * * ", line, count=1)
        lines.append(line + "\n")
    return "".join(lines)


def main() -> None:
    users = {name: f"captured{name[:2]}" for name in CRONTABS}
    daemon = None
    try:
        for user in users.values():
            subprocess.run(["useradd", "-m", "-s", "/bin/sh", user], check=True)
        if subprocess.run(["pgrep", "-x", "cron"], stdout=subprocess.DEVNULL).returncode:
            daemon = subprocess.Popen(["cron", "-f"], env={"PATH": "/usr/bin:/bin"})
        while not 5 <= time.time() % 60 < 45:
            time.sleep(0.5)
        for name, user in users.items():
            home = Path(pwd.getpwnam(user).pw_dir)
            text = due_each_minute(furnish(home, name))
            subprocess.run(["chown", "-R", user, str(home)], check=True)
            subprocess.run(["crontab", "-u", user, "-"], input=text, text=True, check=True)
        while time.time() % 60 > 3:
            time.sleep(0.2)
        time.sleep(12)
        for user in users.values():
            subprocess.run(["crontab", "-u", user, "-r"], check=True)
        found = {name: left(Path(pwd.getpwnam(user).pw_dir), user) for name, user in users.items()}
        (HERE / "as_cron_ran_them.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    finally:
        if daemon is not None:
            daemon.terminate()
            daemon.wait()
        for user in users.values():
            with suppress(subprocess.CalledProcessError):
                subprocess.run(["userdel", "-r", user], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
