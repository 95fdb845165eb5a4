"""What may be stored as payload, meta and result."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronjobs.engine.rules.payload import (
    DEEPEST_READ,
    BadJson,
    check_meta,
    check_payload,
    payload_fault,
    read_json,
    result_json,
)
from cronjobs.errors import PayloadError
from cronjobs.masking import hide_in, without

SIMPLE = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.recursive(
    SIMPLE | TEXTS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)


def deep(levels: int) -> Any:
    return [] if levels == 0 else [deep(levels - 1)]


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_plain_json_is_taken_and_comes_back_the_same(payload: dict[str, Any]) -> None:
    assert read_json(json.dumps(check_payload(payload))) == payload


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ([1], "must be a JSON object, not an array"),
        ("text", "must be a JSON object, not a string"),
        (None, "must be a JSON object, not null"),
        ({"a": float("nan")}, "payload.a is nan, which is not JSON"),
        ({"a": float("inf")}, "payload.a is inf"),
        ({"a": "x\0y"}, "payload.a contains a NUL"),
        ({"a\0": 1}, "a key of payload contains a NUL"),
        ({"a": "\ud800"}, "half of a surrogate pair"),
        ({"a": 10**5000}, "payload.a is a number beyond ±1e400: pass it as text"),
        ({"a": {1: 2}}, "which is not a string"),
        ({"a": object()}, "payload.a is a object, which is not JSON: write it as text, or with numbers, lists"),
        (
            {"a": [datetime(2026, 1, 2, tzinfo=UTC)]},
            "payload.a[0] is a datetime, which is not JSON: write value.isoformat()",
        ),
        ({"a": {7}}, "payload.a is a set, which is not JSON: write a list"),
        ({"a": deep(40)}, "nested deeper than 32"),
        ({"a": "x" * 300_000}, "the limit is 262,144"),
        (BadJson("not JSON: x"), "payload is not JSON"),
    ],
)
def test_a_payload_that_cannot_be_stored_is_refused_with_the_reason(payload: Any, says: str) -> None:
    fault = payload_fault(payload)
    assert fault is not None
    assert says in fault
    with pytest.raises(PayloadError):
        check_payload(payload)


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_what_was_read_can_be_walked_through_on_any_python(wrap: Callable[[Any], Any]) -> None:
    """Its own parser goes deeper than its functions may, from 3.12 on."""

    def nested(levels: int) -> str:
        before, _, behind = json.dumps(wrap(0)).partition("0")
        return before * levels + "0" + behind * levels

    for levels in (DEEPEST_READ + 1, 900, 5000, 100_000):
        assert read_json(nested(levels)) == BadJson("nested too deeply")
    for levels in (1, DEEPEST_READ - 1):
        found = read_json(nested(levels))
        assert json.dumps(hide_in(without(found, ("card",)))) == nested(levels)
    wide = "[" + ", ".join(["[0]"] * 1000) + "]"
    assert read_json(wide) == [[0]] * 1000


def test_a_refusal_does_not_repeat_the_value() -> None:
    assert "hunter2" not in str(payload_fault({"password": "hunter2\0"}))


@pytest.mark.parametrize("meta", [{"a": 1}, {"a": "x\0"}, {1: "a"}, {"a": "x" * 9000}, ["a"]])
def test_meta_is_a_small_mapping_of_strings(meta: Any) -> None:
    with pytest.raises(PayloadError):
        check_meta(meta)


@pytest.mark.parametrize("result", [object(), float("nan"), "x\0", {"a": deep(40)}, "x" * 300_000, {1, 2}])
def test_a_result_that_cannot_be_kept_is_noted_and_never_raises(result: Any) -> None:
    kept, note = result_json(result)
    assert kept is None
    assert note is not None
    assert note.startswith("the result was not kept: ")


@pytest.mark.parametrize("written", ["{", '{"a": NaN}', "[" * 100_000, '{"a": ' + "1" * 5000 + "}", "nonsense"])
def test_json_that_cannot_be_read_never_raises(written: str) -> None:
    assert isinstance(read_json(written), BadJson)
