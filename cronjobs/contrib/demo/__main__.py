"""``python3 -m cronjobs.contrib.demo`` in a fresh checkout: create .venv if needed, and run ``cronjobs demo`` in it.

This module needs only Python. Creating the environment needs the network, too.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / ".venv" / "bin" / "cronjobs"


def main() -> None:
    if not (ROOT / "pyproject.toml").exists():
        sys.exit('this only works in a checkout of cronjobs; if cronjobs is installed, run "cronjobs demo"')
    if not PROGRAM.exists():
        sys.stderr.write("Installing cronjobs and what it needs into .venv (only the first time; half a minute) ...\n")
        # Pass the options that "python3 -m venv" uses, because the README's second command runs it on the same folder.
        venv.create(ROOT / ".venv", with_pip=True, symlinks=True)
        pip = [str(PROGRAM.with_name("python")), "-m", "pip", "install", "-q", "-e", f"{ROOT}[postgres,web]"]
        installed = subprocess.run(pip, check=False).returncode
        if installed != 0:
            sys.exit(installed)
    os.execv(PROGRAM, [str(PROGRAM), "demo", *sys.argv[1:]])


if __name__ == "__main__":
    main()
