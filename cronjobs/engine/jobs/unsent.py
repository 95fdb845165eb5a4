"""Decide whether an error shows that a single call did nothing: connection refused, or host name not found.

We can examine only errors: the error that left the block, the errors that caused that error, and the errors that were
being handled when that error was raised. A client that retries by itself may hide the errors of its earlier tries. So
the result is reliable only for a call that connects once and does not retry by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from socket import gaierror
from traceback import walk_tb

_REFUSED = (ConnectionRefusedError, gaierror)


def did_nothing(error: BaseException, handled_before: BaseException | None = None) -> bool:
    """Return whether every root cause of *error* is a refused connection or a host name that does not resolve.

    A timeout or a lost connection anywhere in the chain means that the call may have arrived. *handled_before* is the
    error that the handler was already handling as it entered the block. Ignore that error, because it does not show
    what the block did.
    """
    found = list(_chain(error, handled_before))
    first = [each for each, is_first in found if is_first]
    if not first or any(_may_have_arrived(each) for each, _ in found):
        return False
    return all(isinstance(each, _REFUSED) for each in first)


def _chain(error: BaseException, handled_before: BaseException | None) -> Iterator[tuple[BaseException, bool]]:
    """Yield *error* and all errors behind it, each with True if it is a root cause, which has no error behind it."""
    waiting, seen = [error], {id(handled_before)}
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        members = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        links = (each.__cause__, each.__context__, *members)
        behind = [one for one in links if one is not None and one is not handled_before]
        waiting += behind
        yield each, not behind


def _may_have_arrived(error: BaseException) -> bool:
    lost = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
    # The timeouts of httpx, urllib3 and requests are recognised by name.
    timed_out = isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower()
    return lost or timed_out or _urllib3_retried(error) or _followed_redirect(error)


def _urllib3_retried(error: BaseException) -> bool:
    """Return whether urllib3 retried the call. It retries by calling itself, and its error shows only the last try."""
    tries = {
        frame
        for frame, _ in walk_tb(error.__traceback__)
        if frame.f_code.co_name == "urlopen" and frame.f_globals.get("__name__") == "urllib3.connectionpool"
    }
    return len(tries) > 1


def _followed_redirect(error: BaseException) -> bool:
    """Return whether the call was redirected, so that its first request arrived.

    urllib and requests follow redirects in a function of their own. httpx and aiohttp collect the answers that
    redirected them in a list called ``history``.
    """
    for frame, _ in walk_tb(error.__traceback__):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if (module, name) in (("urllib.request", "http_error_302"), ("requests.sessions", "resolve_redirects")):
            return True
        if module.partition(".")[0] in ("httpx", "aiohttp") and frame.f_locals.get("history"):
            return True
    return False
