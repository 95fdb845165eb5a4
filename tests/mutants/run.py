"""Remove each guard that keeps data safe, and check that a test fails: ``python tests/mutants/run.py [NAME…]``.

Each mutant is applied to a copy of this checkout, never to the checkout itself. First the tests run in a copy without
any change, so that red means the mutant. Exit code 1: a mutant survived, or does not apply any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "cronjobs",
    "alembic",
    "tests",
    "docs",
    "examples",
    "benchmarks",
)
PARTS = (*FOLDERS, "pyproject.toml", "README.md", "crontab.example")


def main() -> int:
    wanted = [mutant for mutant in MUTANTS if not sys.argv[1:] or any(word in mutant.name for word in sys.argv[1:])]
    with tempfile.TemporaryDirectory(prefix="cronjobs-mutants-") as folder:
        copy = Path(folder)
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / part)
        tests = sorted({test for mutant in wanted for test in mutant.tests})
        print(f"without any mutant: {len(tests)} test files and tests", flush=True)
        if not passes(copy, tests, show=True):
            print("the tests do not pass as they are: nothing can be said")
            return 1
        survived = [mutant.name for mutant in wanted if not is_caught(copy, mutant)]
    for name in survived:
        print(f"SURVIVED: {name}")
    print(f"{len(wanted) - len(survived)} of {len(wanted)} mutants turned a test red")
    return 1 if survived else 0


def is_caught(copy: Path, mutant: Mutant) -> bool:
    file = copy / mutant.file
    whole = file.read_text()
    if whole.count(mutant.old) != 1:
        print(f"{mutant.name}: what it changes is {whole.count(mutant.old)} times in {mutant.file}", flush=True)
        return False
    file.write_text(whole.replace(mutant.old, mutant.new))
    try:
        caught = not passes(copy, mutant.tests)
    finally:
        file.write_text(whole)
    print(f"{'red' if caught else 'STILL GREEN'}: {mutant.name}", flush=True)
    return caught


def passes(copy: Path, tests: list[str] | tuple[str, ...], *, show: bool = False) -> bool:
    """Run *tests* against the package in *copy*, until the first failure, which *show* prints."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=copy,
        # Before the installed package, also for the processes that tests start.
        env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "CRONJOBS_TESTS_BOTH": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest could not run them:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    if done.returncode and show:
        print(done.stdout[-3000:])
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
