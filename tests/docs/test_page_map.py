"""docs/map.md, executed: its handlers, in a test's own thread as the page says, and its numbers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pages import Page

from cronjobs.execution.call_pool import GRACE_S
from cronjobs.execution.call_worker import MOST_PRINTED
from cronjobs.jobs import registry
from cronjobs.rules.calls import BUNDLE_S, MOST_RESULT
from cronjobs.testing import context

PAGE = Page("docs/map.md")
pytestmark = pytest.mark.either


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "shop_jobs.py").write_text(PAGE.block("python", "# shop_jobs.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(registry._registered)
    yield importlib.import_module("shop_jobs")
    sys.modules.pop("shop_jobs", None)
    registry._registered.clear()
    registry._registered.update(before)


def test_every_block_of_the_page_is_executed_here() -> None:
    assert PAGE.counts() == {"python": 2}


def test_its_handlers_map(shop: Any) -> None:
    assert shop.resize_all(context(), paths=["a", "b"]) == 3600
    assert shop.resize_some(context(), paths=["a"]) == {"bad": {}, "done": ["a"]}

    def broken(path: str) -> dict[str, str]:
        if path == "b":
            raise OSError("no such picture")
        return {"path": path}

    registry._registered["shop.resize"] = registry.Registration("shop.resize", broken)
    found = shop.resize_some(context(), paths=["a", "b", "c"])
    assert found == {"bad": {"b": "OSError: no such picture"}, "done": ["a", "c"]}


def test_a_map_in_a_step_is_not_made_again(shop: Any) -> None:
    block = compile(PAGE.block("python", "ctx.step"), "docs/map.md", "exec", dont_inherit=True)
    for steps, calls in (({}, 1), ({"resized": [{"path": "a"}]}, 0)):
        ctx = context(steps=steps)
        exec(block, {"ctx": ctx, "payloads": [{"path": "a"}]})
        assert len([told for told in ctx.reported if told.done]) == calls


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    words = " ".join(PAGE.text.split())
    assert (MOST_RESULT, "at most 1 MiB each" in words) == (1024 * 1024, True)
    assert (MOST_PRINTED, "the last 16 KiB of each call" in words) == (16 * 1024, True)
    assert (GRACE_S, "SIGKILL after a second" in words) == (1.0, True)
    assert (BUNDLE_S, "a quarter of a second's worth" in words) == (0.25, True)
