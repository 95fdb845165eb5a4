"""Shell completion of commands, options and values: what each shell asks, and the file that zsh reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.project import Project

from cronjobs.desk.cli.completion import CALL, mend

TYPED = {
    "cronjobs stat": "status",
    "cronjobs jobs r": "retry",
    "cronjobs jobs list --st": "--status",
    "cronjobs jobs list --status d": "dead",
    "cronjobs run-due --fail-on a": "any",
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("typed", TYPED)
def test_what_a_shell_asks_is_answered(
    project: Project, monkeypatch: pytest.MonkeyPatch, shell: str, typed: str
) -> None:
    monkeypatch.setenv("_CRONJOBS_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", typed)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert TYPED[typed] in project.call().out


FILE = """
database: ${NOT_SET_AT_A_TAB}
job_types: {mail.send: {command: [ls]}}
schedules: {nightly: {cron: "15 2 * * *", job: mail.send}, monthly: {cron: "@monthly", job: x.y}}
"""


def test_names_of_the_file_are_completed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CRONJOBS_COMPLETE", "complete_bash")
    (project.folder / "other.yaml").write_text(FILE)
    for typed, found in (
        ("trigger ni", []),  # there is no file, and a Tab says nothing of it
        ("--config other.yaml trigger ni", ["nightly"]),
        ("--config other.yaml pause m", ["monthly"]),
        ("--config other.yaml history --schedule n", ["nightly"]),
        ("--config other.yaml enqueue m", ["mail.send"]),
        ("--config other.yaml explain m", ["monthly", "mail.send"]),
    ):
        monkeypatch.setenv("COMP_WORDS", f"cronjobs {typed}")
        monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
        answer = project.call()
        assert (answer.out.split(), answer.err) == (found, ""), typed


def test_zsh_gets_an_answer_to_the_first_tab(tmp_path: Path) -> None:
    file = tmp_path / ".zfunc" / "_cronjobs"
    mend(tmp_path)  # nothing was installed for zsh
    assert not file.exists()
    file.parent.mkdir()
    file.write_text("#compdef cronjobs\n_cronjobs_completion() {\n}\ncompdef _cronjobs_completion cronjobs")
    for _ in range(2):
        mend(tmp_path)
        assert file.read_text().endswith(f"compdef _cronjobs_completion cronjobs\n{CALL}")


@pytest.mark.slow
def test_bash_completes_with_what_is_installed(tmp_path: Path) -> None:
    program = tmp_path / "cronjobs"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m cronjobs "$@"\n')
    program.chmod(0o755)
    script = (
        "cronjobs --install-completion >&2; source ~/.bash_completions/cronjobs.sh\n"
        "COMP_WORDS=(cronjobs stat); COMP_CWORD=1; _cronjobs_completion cronjobs; echo ${COMPREPLY[@]}\n"
    )
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin", "SHELL": "/bin/bash"}
    done = subprocess.run(
        ["bash", "--norc"], input=script, env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("status\n", 0), done.stderr
