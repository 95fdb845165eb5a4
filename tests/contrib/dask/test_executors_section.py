"""``executors:`` in the file: an unusable entry is reported with its position, and left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.configfile import DATABASE, cases, problems

from cronjobs.contrib.dask.supervisor import settings_of
from cronjobs.contrib.dask.worker_home import token_database
from cronjobs.engine.config.load import load
from cronjobs.engine.tick.executors import Supervision

BAD_VALUES = cases(r"""
executors: {c: {dask: "tcp://scheduler:8786"}}
    2:16: executors.c: a scheduler runs whatever it is sent, and tcp:// lets anyone connect: write tls:// and
    the key "tls: {ca, cert, key}", or write "insecure: true" if the network is private
executors: {c: {dask: "tls://scheduler:8786"}}
    2:16: executors.c: tls:// needs three files: write "tls: {ca: ca.pem, cert: client.pem, key: client.key}"
executors: {c: {dask: "scheduler:8786"}}
    2:23: executors.c.dask: "scheduler:8786" is not the address of a scheduler: write it like tls://scheduler:8786
executors: {c: {resources: {GPU: many}}}
    2:34: executors.c.resources.GPU: "many" is not a number: write a number in 0.001–1e+06
""")


@pytest.mark.parametrize(("line", "said"), BAD_VALUES)
def test_a_bad_value_is_told_with_its_place_and_what_to_write(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems(DATABASE + line) == [f"cronjobs.yaml:{said}"]


@pytest.mark.parametrize(("in_file", "expected"), [("", "django.setup"), ("setup: shop.prepare\n", "shop.prepare")])
def test_what_sets_up_the_handlers_of_a_tick_also_does_so_in_its_supervisor_and_on_workers(
    in_file: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick of manage.py sets up Django, whatever the file says."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "cronjobs.yaml"
    file.write_text(DATABASE + in_file)
    (tmp_path / "shop.py").write_text("def prepare(): pass\n")
    plain = load(file, environ={})
    ticks = replace(plain, setup=plain.setup or "django.setup")
    given = Supervision.decode(Supervision.of(ticks, "cluster", None).encode())
    assert given.lock_name == Supervision.of(plain, "cluster", None).lock_name
    claimed = settings_of(given)
    here, database = token_database(claimed)
    database.close()
    assert (claimed.setup, here.setup) == (expected, expected)
