"""docs/how-to/seeing.md: its commands run and accept --json, and its log line is a real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.pages import Page
from support.project import Project
from support.shop import Shop, commands
from support.shop import busy_shop as busy_shop
from support.shop import shop as shop

PAGE = Page("docs/how-to/seeing.md")


@pytest.mark.slow
def test_what_the_section_on_looking_shows_can_be_typed(busy_shop: Shop) -> None:
    for command in commands(PAGE, "The commands"):
        answer = busy_shop.shell(command)
        assert answer.code == 0, (command, answer)
    assert busy_shop.jobs()[16]["status"] == "succeeded"  # cronjobs run 17


@pytest.mark.parametrize("command", [command.split("#")[0].split() for command in commands(PAGE, "The commands")])
def test_what_lists_takes_json(busy_shop: Shop, command: list[str]) -> None:
    if command[1] != "run":
        assert busy_shop.call(*command[1:], "--json").json is not None


def test_the_log_line_has_the_keys_of_a_real_one_in_their_order(tmp_path: Path) -> None:
    [shown] = [line for one in PAGE.blocks("") for line in one.text.splitlines() if "job.retried" in line]
    project = Project(tmp_path, f"sqlite:///{tmp_path}/cronjobs.db")
    handlers = (
        'from cronjobs import job\n@job("billing.send_invoice")\ndef send():\n    raise OSError("503 from mail")\n'
    )
    project.write("log: cronjobs.log\ndefaults: {retry: {max_attempts: 20}}\n", handlers)
    assert project.run("enqueue", "billing.send_invoice").code == 0
    assert project.run("run-due").code == 0
    [real] = [line for line in (tmp_path / "cronjobs.log").read_text().splitlines() if "job.retried" in line]
    assert shape(shown) == shape(real)
    assert 'tries="1 of 20"' in real


def shape(line: str) -> list[str]:
    """Of a log line: its instant, its event, and for each key whether its value is a number, a word or quoted text."""
    at, name, rest = line.split(" ", 2)
    kinds = [re.sub(r"\d", "9", at), name]
    for key, value in re.findall(r'(\w+)=("[^"]*"|\S+)', rest):
        kind = "number" if value.isdigit() else "text" if value.startswith('"') else "word"
        kinds.append(f"{key}={kind}")
    return kinds
