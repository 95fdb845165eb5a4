"""A relative path in a handler is relative to the folder of the file, wherever the tick was started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.ticking import Project

pytestmark = pytest.mark.either

HANDLERS = """
with open("imported", "a") as file:
    file.write("x")

@job("t.thread")
@job("t.process", isolation="process")
@job("t.long", isolation="process", timeout="2m")
def writes(ctx):
    with open(ctx.job_type, "a") as file:
        file.write("x")
"""


@pytest.mark.slow
def test_a_handler_works_in_the_files_folder_in_a_thread_a_process_and_a_long_job(project: Project) -> None:
    project.configure("", HANDLERS)
    for name in ("t.thread", "t.process", "t.long"):
        project.add(name)
    assert project.tick("--wait", cwd="/").wait() == 0
    assert [(project.folder / name).read_text() for name in ("t.thread", "t.process", "t.long")] == ["x", "x", "x"]
    assert set((project.folder / "imported").read_text()) == {"x"}


def test_a_relative_path_of_the_command_line_counts_from_where_it_was_typed(
    sqlite_project: Project, tmp_path: Path
) -> None:
    project = sqlite_project.configure("", HANDLERS)
    project.add("t.thread")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link").symlink_to(project.folder)
    argv = [sys.executable, "-m", "cronjobs", "run-due", "--config", "link/cronjobs.yaml"]
    assert project.tick(argv=argv, cwd=elsewhere).wait() == 0
    assert (project.folder / "t.thread").read_text() == "x"
    assert sorted(each.name for each in elsewhere.iterdir() if each.name.startswith(("t.", "imported"))) == []


RELEASES = """
@job("t.late", isolation="thread")
def imports_late(ctx, links):
    os.replace(os.path.join(links, "next"), os.path.join(links, "current"))
    import latecomer
    with open(os.path.join(links, "loaded"), "w") as file:
        file.write(latecomer.RELEASE)
"""


def test_a_tick_imports_no_module_of_the_release_that_a_link_names_since(
    sqlite_project: Project, tmp_path: Path
) -> None:
    links, new = tmp_path / "links", tmp_path / "new"
    for folder in (links, new):
        folder.mkdir()
    project = sqlite_project.configure("", RELEASES)
    for folder in (project.folder, new):
        (folder / "latecomer.py").write_text(f"RELEASE = {str(folder)!r}")
    (links / "current").symlink_to(project.folder)
    (links / "next").symlink_to(new)
    project.add("t.late", payload=json.dumps({"links": str(links)}))
    argv = [sys.executable, "-m", "cronjobs", "run-due", "--config", str(links / "current" / "cronjobs.yaml")]
    assert project.tick(argv=argv).wait() == 0
    assert (links / "current").readlink() == new
    assert (links / "loaded").read_text() == str(project.folder)
