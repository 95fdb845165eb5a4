"""``executors:`` in the file: an unusable entry is reported with its position, and left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.configfile import DATABASE, cases, problems

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
