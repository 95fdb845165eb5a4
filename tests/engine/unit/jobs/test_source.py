"""The version of the user's code: which edits change it, and which do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "cronjobs.yaml": "database: sqlite:///x.db\nimports: [shop.jobs]\n",
    "shop/__init__.py": "",
    "shop/jobs.py": "from cronjobs import job\nimport shop.prices, beside\n@job('t')\ndef t(): pass\n",
    "shop/prices.py": "VAT = 20\n",
    "shop/unused.py": "",
    "beside.py": "",
    "venv/lib/site-packages/library.py": "",
}
ASK = """
import sys
from pathlib import Path
sys.path.insert(0, "venv/lib/site-packages")
import library
from cronjobs.engine.config.load import load
from cronjobs.engine.jobs import job_types
from cronjobs.engine.jobs.source import source_hash
settings = load(Path("cronjobs.yaml"), environ={})
assert not job_types.load(settings).faults
print(source_hash(settings))
"""


def version(folder: Path, **changes: str) -> str:
    for name, content in (FILES | changes).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    argv = [sys.executable, "-B", "-c", ASK]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_version_of_the_code_is_its_source_wherever_it_lies(tmp_path: Path) -> None:
    here = version(tmp_path / "here")
    assert here == version(tmp_path / "there"), "two hosts with the same code have one version"
    for changed in ("shop/jobs.py", "shop/prices.py", "beside.py"):
        assert version(tmp_path / "here", **{changed: FILES[changed] + "# another\n"}) != here, changed
    for other in ("shop/unused.py", "venv/lib/site-packages/library.py", "cronjobs.yaml"):
        assert version(tmp_path / "here", **{other: FILES[other] + "# another\n"}) == here, other
    script = tmp_path / "here/.venv/bin/cronjobs"  # cron's line runs "python -m cronjobs", and people run the script
    script.parent.mkdir(parents=True)
    script.write_text(ASK)
    argv = [sys.executable, "-B", str(script)]
    started = subprocess.run(argv, cwd=tmp_path / "here", capture_output=True, text=True, check=True)
    assert started.stdout == here, "how the process was started is not part of the code"
