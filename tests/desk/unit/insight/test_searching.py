"""The search field of the jobs page: each word has the documented meaning, and any text gets an answer."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cronjobs.desk.insight.searching import LONGEST, MOST_IDS, NAMES, STATUS_WORDS, Search, SearchError, search

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda text: text.strip()
)
IDS = st.lists(st.integers(1, 2**63 - 1), max_size=5, unique=True).map(tuple)
KEYS = st.text("0123456789abcdef", min_size=12, max_size=12)
SEARCHES = st.builds(
    Search,
    **{name: st.none() | WORDS for name in ("type", "error", "queue", "schedule", "key", "since")},
    status=st.none() | st.sampled_from(STATUS_WORDS),
    cause=st.none() | KEYS,
    ids=IDS,
)
# Text of what searches are made of, which random characters hardly ever are.
PIECES = st.sampled_from(
    [*(f"{name}:" for name in NAMES), "id:", "exec:", "x:", '"', "\\", " ", "\n", "17", "0", "9" * 20, ",", "dead", "é"]
)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("", Search()),
        ("  \n", Search()),
        ("type:billing status:dead", Search(type="billing", status="dead")),
        ('error:"no invoice" since:24h', Search(error="no invoice", since="24h")),
        ("key:invoice:42", Search(key="invoice:42")),
        ("queue:mail schedule:nightly", Search(queue="mail", schedule="nightly")),
        ("cause:234D9B42D381", Search(cause="234d9b42d381")),
        ("17", Search(ids=(17,))),
        ("17 18 17", Search(ids=(17, 18))),
        ("id:17,18", Search(ids=(17, 18))),
        ("billing", Search(type="billing")),
        ('"17"', Search(type="17")),
        ("type:17", Search(type="17")),
        ("exec:backup", Search(type="exec:backup")),
        ("STATUS:Dead", Search(status="dead")),
        ("status:failed", Search(status="retrying")),
        ('type:a"b', Search(type='a"b')),
        (r'error:"a \"b\" \\ c:\temp"', Search(error=r'a "b" \ c:\temp')),
        ('error:"two\nlines"', Search(error="two\nlines")),
        ("error:it's", Search(error="it's")),
        (":x", Search(type=":x")),
        ("2026-03-29T02:00", Search(type="2026-03-29T02:00")),
    ],
)
def test_a_search_means_what_it_says(text: str, means: Search) -> None:
    assert search(text) == means


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("status:weird", "'weird' is not one of queued, running"),
        ("typ:billing", 'a search has no field "typ:", only type:, status:'),
        ("type:a type:b", '"type:" is given twice'),
        ("type:a b", '"type:" is given twice'),
        ("type:", '"type:" has no value'),
        ('type:""', '"type:" has no value'),
        ('error:"no invoice', 'a " is not closed'),
        ('error:"a"b', "write a space"),
        ("id:x", "'x' is not a job id"),
        ("0", "'0' is not a job id"),
        ("9223372036854775808", "is not a job id"),
        ("id:1,", "'1,' is not a job id"),
        ("cause:xyz", "'xyz' is not a cause: a cause has 12 hexadecimal digits"),
        ("a\0b", "characters that cannot"),
        ("a\ud800b", "characters that cannot"),
        ("x" * (LONGEST + 1), "at most 6,000 characters"),
        (" ".join(map(str, range(1, MOST_IDS + 2))), "at most 500 ids"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(SearchError) as refused:
        search(text)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 300


@given(st.text() | st.lists(PIECES | st.text(max_size=3), max_size=15).map("".join))
@example('type:"\\')
@example("id:")
def test_any_text_is_a_search_or_an_error_of_ours(text: str) -> None:
    try:
        found = search(text)
    except SearchError:
        return
    assert search(str(found)) == found


@given(SEARCHES)
@example(Search(type='"'))
@example(Search(error="\\"))
@example(Search(error='\\"'))
@example(Search(type="17"))
def test_a_search_as_it_is_written_is_read_as_the_same(meant: Search) -> None:
    assert search(str(meant)) == meant
