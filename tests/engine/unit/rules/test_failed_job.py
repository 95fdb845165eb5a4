"""What people read of a job that failed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cronjobs.engine.rules.failed_job import absolute, described, error_line, last_own_line
from cronjobs.errors import EffectUnknown

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/shop.py", line 9, in pay
    charge(card)
  File "/srv/shop/cards.py", line 3, in charge
    client.post(url, timeout=3)
    ~~~~~~~~~~~^^^^^^^^^^^^^^^^
  File "/srv/shop/.venv/lib/python3.11/site-packages/client.py", line 88, in post
    raise Refused
client.Refused: no such card
"""


def test_the_last_line_of_their_own_code_is_found() -> None:
    found = "/srv/shop/cards.py:3 in charge: client.post(url, timeout=3)"
    assert last_own_line(TRACEBACK, Path("/srv/shop")) == found
    assert last_own_line(TRACEBACK, Path("/elsewhere")) == found
    assert last_own_line("ValueError: x", Path("/srv/shop")) is None
    assert last_own_line(None, Path("/srv/shop")) is None


def test_the_command_that_settles_an_effect_can_be_typed_in_any_folder() -> None:
    file = Path("/srv/shop/cronjobs.yaml")
    job = described(6, "shop.pay", "EffectUnknown", str(EffectUnknown("invoice-email:6")), None, file)
    assert f"{absolute('cronjobs effects settle invoice-email:6 done', file)} (or not-done)" in error_line(job)


def test_each_of_several_commands_can_be_typed_in_any_folder() -> None:
    file = Path("/srv/shop/cronjobs.yaml")
    one, two = "cronjobs explain nightly", "cronjobs explain weekly"
    assert absolute(f"{one}; {two}", file) == f"{absolute(one, file)}; {absolute(two, file)}"


def test_a_command_without_a_script_imports_nothing_from_the_folder_in_which_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    said = absolute("cronjobs jobs show 5", Path("/srv/shop/cronjobs.yaml"))
    assert said == f"{tmp_path}/python -P -m cronjobs --config /srv/shop/cronjobs.yaml jobs show 5"
