"""Exceptions, results and delays that raise errors or give false answers when code inspects them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from cronjobs.errors import Cancelled, RetryLater


class Span(timedelta):
    def total_seconds(self) -> float:
        raise RuntimeError("no")


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class NoWords(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class NotText(Exception):
    def __str__(self) -> Any:
        return 5


class Rude(BaseException):
    pass


class Lies(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("guess")


class Text(str):
    def __getitem__(self, _key: Any) -> Any:
        raise RuntimeError("no part of me")

    def encode(self, *_: Any) -> Any:
        raise RuntimeError("no bytes of me")


class OddText(Exception):
    def __str__(self) -> str:
        return Text("words")


class NoReason(Cancelled):
    def __init__(self) -> None:
        pass


class NoDelay(RetryLater):
    def __init__(self) -> None:
        pass

    @property
    def after(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no delay")


class Meta(type):
    @property
    def __module__(cls) -> Any:  # type: ignore[override]
        raise RuntimeError("from nowhere")


class Nameless(Exception, metaclass=Meta):
    pass


class Group(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise RuntimeError("count them yourself")


UNTRUSTED: list[Callable[[], BaseException]] = [
    lambda: NoWords(),
    lambda: NotText(),
    lambda: Rude("rude"),
    lambda: Lies(),
    lambda: OddText(),
    lambda: NoReason(),
    lambda: NoDelay(),
    lambda: Nameless(),
    lambda: Group("g", [ValueError("x")]),
    lambda: SystemExit(0),
    lambda: SystemExit(None),
    lambda: SystemExit("over"),
    lambda: SystemExit(object()),
    lambda: SystemExit(10**400),
    lambda: SystemExit(Unreadable()),
    lambda: KeyboardInterrupt(),
    lambda: GeneratorExit(),
    lambda: StopIteration(Unreadable()),
    lambda: StopAsyncIteration(),
    lambda: MemoryError(),
    lambda: RecursionError("deep"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    lambda: OSError(2, "No such file", "\udcff"),
    lambda: ValueError("half \ud800, nul \0, \x1b[2J, \u2028"),
    lambda: ValueError(*range(10_000)),
    lambda: BaseExceptionGroup("exits", [SystemExit(1), KeyboardInterrupt()]),
]


class Twice(dict[str, Any]):
    """Behaves well only the first time that code inspects it."""

    looked = 0

    def items(self) -> Any:
        self.looked += 1
        if self.looked > 1:
            raise RuntimeError("once is enough")
        return super().items()


class Always(dict[str, Any]):
    def items(self) -> Any:
        raise SystemExit("do not look")


def bomb() -> list[Any]:
    bomb: list[Any] = ["x" * 100]
    for _ in range(28):
        bomb = [bomb] * 10
    return bomb
