"""What a handler's threads print and log goes to the handler's attempt, and to no other attempt after its end."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from cronjobs.engine.execution.output import _Dispatch, _LogToOutput, captured, follow_threads


@contextmanager
def crons_mail() -> Iterator[io.StringIO]:
    """What would reach the tick's own streams. No fixture: pytest gives each phase of a test another stdout."""
    mail, before, handler = io.StringIO(), sys.stdout, _LogToOutput()
    follow_threads()
    sys.stdout = _Dispatch(mail)
    logging.getLogger("shop").addHandler(handler)
    try:
        yield mail
    finally:
        logging.getLogger("shop").removeHandler(handler)
        sys.stdout = before


def attempt(work: Callable[[], None], live: list[str] | None = None) -> str:
    """*work* in a thread of its own, as a worker runs it; return its output. *live*: what somebody who watches sees."""
    found: list[str | None] = []

    def run() -> None:
        with captured(also=None if live is None else live.append) as output:
            work()
        found.append(output.text())

    worker = threading.Thread(target=run)
    worker.start()
    worker.join()
    return found[0] or ""


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Own(threading.Thread):
    def run(self) -> None:
        print("own")


def own() -> None:
    thread = Own()
    thread.start()
    thread.join()


def timer() -> None:
    thread = threading.Timer(0, lambda: print("timer"))
    thread.start()
    thread.join()


def pooled() -> None:
    with ThreadPoolExecutor(2, initializer=lambda: None) as pool:
        pool.submit(print, "pooled").result()


def with_asyncio() -> None:
    async def main() -> None:
        await asyncio.to_thread(print, "to_thread")
        await asyncio.get_running_loop().run_in_executor(None, print, "executor")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: in_thread(lambda: print("thread")), ["thread"]),
        (lambda: in_thread(lambda: in_thread(lambda: print("thread of a thread"))), ["thread of a thread"]),
        (lambda: in_thread(lambda: logging.getLogger("shop").warning("logged")), ["logged"]),
        (lambda: in_thread(pooled), ["pooled"]),
        (own, ["own"]),
        (timer, ["timer"]),
        (pooled, ["pooled"]),
        (with_asyncio, ["to_thread", "executor"]),
    ],
)
def test_threads_of_a_handler_speak_for_its_attempt(work: Callable[[], None], words: list[str]) -> None:
    with crons_mail() as mail:
        output = attempt(work)
    assert (output.split("\n")[:-1], mail.getvalue()) == (words, "")


def test_a_shared_pool_speaks_for_whoever_submits() -> None:
    with crons_mail() as mail, ThreadPoolExecutor(1) as pool:
        first = attempt(lambda: pool.submit(print, "first").result())
        second = attempt(lambda: pool.submit(print, "second").result())
    assert (first, second, mail.getvalue()) == ("first\n", "second\n", "")


def test_what_a_thread_says_after_its_attempt_reaches_nobody() -> None:
    ended, said, live = threading.Event(), threading.Event(), list[str]()

    def later() -> None:
        print("in time")
        said.set()
        ended.wait(60)
        for _ in range(1000):
            print("too late")
        logging.getLogger("shop").warning("too late")

    thread = threading.Thread(target=later)

    def work() -> None:
        thread.start()
        said.wait(60)

    def next_one() -> None:
        ended.set()
        thread.join()
        print("next")

    with crons_mail() as mail:
        assert attempt(work, live) == "in time\n"
        assert attempt(next_one) == "next\n"
    assert ("".join(live), mail.getvalue()) == ("in time\n", "")


def test_threads_of_nobodys_attempt_speak_to_the_tick() -> None:
    with crons_mail() as mail:
        in_thread(lambda: print("at import"))
    assert mail.getvalue() == "at import\n"
