"""The facts about a configuration that the fast path needs. A full tick that found no fault stores these facts in a
file.

The file contains no value that a user wrote. Instead it says in which source to find each value (the configuration, an
env_file, a variable or the command line), and contains a hash of all sources. If a source has changed or cannot be
read, the full tick takes over.
"""

from __future__ import annotations

import os
import stat
import sys

from cronjobs.engine.probe.state_files import blake2b
from cronjobs.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    # A text as pieces (source, from, to). Each piece is a range of bytes in one of the sources.
    Pieces = list[tuple[int, int, int]]

LONGEST_SOURCE = 16 << 20
# A full tick writes the metrics file this often. With one tick a minute, that is every fourth tick.
METRICS_EVERY_S = 210
SEPARATOR = b"\0"  # no path, variable or argument can contain this byte
# Every tick reads these variables, besides those that its file uses.
ALWAYS = (
    "CRONJOBS_CONFIG",
    "CRONJOBS_DATABASE_URL",
    "CRONJOBS_SCHEDULES",
    "CRONJOBS_HOST",
    "CRONJOBS_TRUST_FILES",
)


class Start:
    """How this process was started: its arguments, environment and folder."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = [*map(os.fsencode, arguments)]
        # Copy the environment, because handlers may change it.
        self.environ = dict(os.environb)
        try:
            self.folder = os.fsencode(os.getcwd())
        # The working folder has been removed.
        except OSError:
            self.folder = b""

    @property
    def name(self) -> str:
        """The name of the file that belongs to this command line, this folder and the variables in ALWAYS."""
        ours = [self.environ.get(os.fsencode(name)) for name in ALWAYS]
        return f"idle-{_hash([*self.arguments, *ours, self.folder])[:16]}"


def _hash(parts: Sequence[bytes | None]) -> str:
    total = blake2b(digest_size=16)
    for part in parts:
        total.update(b"-" if part is None else b"%d:" % len(part))
        total.update(part or b"")
    return total.hexdigest()


class Sources:
    """The sources of a configuration: the command line, named variables, and files with their exact content."""

    def __init__(self, start: Start, variables: Sequence[str], files: Mapping[str, bytes]) -> None:
        self.start = start
        self.variables = variables
        self.files = files
        self.texts: list[bytes | None] = [
            *map(os.fsencode, files),
            *start.arguments,
            *(start.environ.get(os.fsencode(name)) for name in variables),
            *files.values(),
        ]

    def hash(self) -> str:
        """Return the hash of everything that a configuration depends on, including our version and location."""
        ours = [__version__, sys.version, __file__, *self.variables]
        return _hash([*map(os.fsencode, ours), self.start.folder, *self.texts])

    def text_of(self, pieces: Pieces) -> str:
        return b"".join((self.texts[source] or b"")[start:end] for source, start, end in pieces).decode()

    def pieces_of(self, text: str) -> Pieces | None:
        """Return at most 16 pieces of the sources that together make up *text*.

        Return None if there are no such pieces.
        """
        left = text.encode()
        at = 0
        found: Pieces = []
        while at < len(left):
            longest = (0, 0, 0)  # length, source, start
            for number, source in enumerate(self.texts):
                length = longest[0]
                while at + length < len(left) and (start := (source or b"").find(left[at : at + length + 1])) >= 0:
                    length += 1
                    longest = (length, number, start)
            length, number, start = longest
            if length == 0 or len(found) == 16:
                return None
            found.append((number, start, start + length))
            at += length
        return found


def content_of(path: str) -> bytes:
    """Return the content of a regular file. Raises OSError for any other kind of file. Never waits."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        content = file.read(LONGEST_SOURCE + 1)
    if len(content) > LONGEST_SOURCE:
        raise OSError(f"{path} is too long")
    return content


class Inputs:
    """The values that the last full tick stored, by name.

    Values of cronjobs (``ours``) are stored as text. Values of the user (``theirs``) are stored only as positions
    in the sources (``Pieces``).
    """

    def __init__(self, sources: Sources, ours: dict[str, str], theirs: dict[str, Pieces]) -> None:
        self.sources = sources
        self.ours = ours
        self.theirs = theirs

    def __getitem__(self, name: str) -> str:
        return self.ours[name] if name in self.ours else self.sources.text_of(self.theirs[name])

    def to_bytes(self) -> bytes:
        lists = [list(self.sources.files), list(self.sources.variables)]
        lists += [[f"{name}={value}" for name, value in self.ours.items()]]
        lists += [[f"{name}={_written(pieces)}" for name, pieces in self.theirs.items()]]
        words = [self.sources.hash(), *(str(len(each)) for each in lists), *(word for each in lists for word in each)]
        return SEPARATOR.join(map(os.fsencode, words))

    @classmethod
    def from_bytes(cls, content: bytes, start: Start) -> Inputs | None:
        """Return the inputs that ``to_bytes`` wrote as *content*, or None if a source has changed. Raises OSError or
        ValueError.
        """
        words = [os.fsdecode(word) for word in content.split(SEPARATOR)]
        was, counts, at = words[0], map(int, words[1:5]), 5
        lists = []
        for count in counts:
            lists.append(words[at : at + count])
            at += count
        files, variables, ours, theirs = lists
        sources = Sources(start, variables, {path: content_of(path) for path in files})
        if sources.hash() != was:
            return None
        return cls(
            sources,
            dict(each.split("=", 1) for each in ours),
            {name: _read(written) for name, written in (each.split("=", 1) for each in theirs)},
        )


def _written(pieces: Pieces) -> str:
    return " ".join(f"{source},{start},{end}" for source, start, end in pieces)


def _read(written: str) -> Pieces:
    found = []
    for piece in written.split():
        source, start, end = piece.split(",")
        found.append((int(source), int(start), int(end)))
    return found
