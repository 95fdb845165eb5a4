"""docs/reference is what the code says."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import generate

pytestmark = pytest.mark.either


@pytest.mark.parametrize("page", generate.PAGES)
def test_the_page_is_what_the_code_says(page: str) -> None:
    written = (generate.REFERENCE / page).read_text(encoding="utf-8")
    assert written == generate.text_of(page), "run: python docs/generate.py"


def test_the_generator_names_the_page_that_differs(tmp_path: object) -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
