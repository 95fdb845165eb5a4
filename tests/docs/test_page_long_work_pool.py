"""docs/how-to/long-work.md: its pool passes the page's tests, and ticks that finish, cancel and kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clusters import wait_until
from support.pages import Page
from support.ticking import Project, cli

PAGE = Page("docs/how-to/long-work.md")
JOBS = PAGE.block("python", "# shop_jobs.py")
pytestmark = pytest.mark.either

# A picture named hang-… hangs in the pool, after its process has written down its pid; one named bad-… raises.
HANDLERS = JOBS.replace("from cronjobs import Context, job\n", "").replace(
    "    return 1000 + len(path)\n",
    """    print("resizing", path)
    if path.startswith("bad"):
        raise ValueError(path)
    if Path(path).name.startswith("hang"):
        Path(path).write_text(str(os.getpid()))
        time.sleep(600)
    return 1000 + len(path)
""",
)


@pytest.mark.slow
def test_its_tests_pass(tmp_path: Path) -> None:
    (tmp_path / "shop_jobs.py").write_text(JOBS)
    (tmp_path / "test_shop.py").write_text(PAGE.block("python", "# test_shop.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.fixture
def shop(project: Project) -> Project:
    project.configure("run: {workers: 3}\n", "from pathlib import Path\n\nfrom cronjobs import Context\n" + HANDLERS)
    return project


def add(shop: Project, *paths: str, **columns: object) -> int:
    payload = json.dumps({"paths": [str(shop.folder / path) if "hang" in path else path for path in paths]})
    return shop.add("shop.resize_all", payload, **columns)


@pytest.mark.slow
def test_a_tick_runs_it_and_a_failed_call_fails_the_job(shop: Project) -> None:
    good, bad = add(shop, "a", "bb", "ccc"), add(shop, "a", "bad")
    shop.tick()
    assert shop.job(good)["status"] == "succeeded", shop.log()
    assert (shop.job(bad)["status"], shop.job(bad)["error_type"]) == ("failed", "ValueError")
    [(output,)] = shop.sql(f"SELECT output FROM cronjobs_job_runs WHERE job_id = {good}")
    assert sorted(output.split()) == sorted([*["resizing"] * 3, "a", "bb", "ccc"])


@pytest.mark.slow
def test_the_pool_ends_with_a_job_that_is_cancelled_times_out_or_is_killed(shop: Project) -> None:
    cancelled, timed_out, killed = add(shop, "hang-1", "b"), add(shop, "hang-2", timeout_s=6), add(shop, "hang-3")
    tick = shop.start()
    files = [shop.folder / f"hang-{n}" for n in (1, 2, 3)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files), 40, shop.log())
    pool = [int(file.read_text()) for file in files]
    cli(shop, "jobs", "cancel", str(cancelled))
    os.kill(parent_of(pool[2]), signal.SIGKILL)
    tick.wait(60)
    assert not [pid for pid in pool if is_running(pid)]
    assert shop.outcomes(cancelled) == ["cancelled"]
    assert shop.outcomes(timed_out) == ["timed_out"]
    assert shop.outcomes(killed) == ["failed"]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
