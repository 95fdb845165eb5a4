"""The mutants still match the code: each one removes exactly one guard."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_guard_that_a_mutant_takes_out_stands_in_its_file_once(mutant: Mutant) -> None:
    whole = (ROOT / mutant.file).read_text()
    assert whole.count(mutant.old) == 1
    compile(whole.replace(mutant.old, mutant.new), mutant.file, "exec")
    assert mutant.new != mutant.old
    for test in mutant.tests:
        file, *names = test.split("::")
        assert all(f"def {name.partition('[')[0]}(" in (ROOT / file).read_text() for name in names), test
