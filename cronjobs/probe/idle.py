"""An idle tick from start to end; whatever else a tick is, the full one decides, and it alone prints and logs."""

from __future__ import annotations

import os
import time

from cronjobs.probe import here, state_files, timer
from cronjobs.probe.inputs import Inputs, Start
from cronjobs.probe.question import MANY_QUEUES
from cronjobs.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NO_ALARM = (None, b"", b"{}")


def was_idle(arguments: Sequence[str]) -> bool:
    """Start the tick's time limit; then, if there is nothing to do, record that and return True.

    Never raises. False: nothing was written, and the full tick has to look.
    """
    begun = time.monotonic() - timer.start()
    try:
        return _settle(arguments, begun)
    except Exception:
        # A file that changes, a database that is away, an error of ours: the full tick meets it too, and reports it.
        return False


def _settle(arguments: Sequence[str], begun: float) -> bool:
    folder = state_files.lasting_folder()
    if folder is None or os.isatty(1) or os.isatty(2):
        return False
    start = Start(arguments)
    descriptor = state_files.open_folder(folder)
    try:
        content = state_files.read_file(descriptor, start.name)
        inputs = None if content is None else Inputs.from_bytes(content, start)
        if inputs is None:
            return False
        if _kept(descriptor, inputs["alarm"]) not in NO_ALARM or _kept(descriptor, inputs["word"]) is not None:
            return False  # an alarm that may be over, or something to print
    finally:
        os.close(descriptor)
    return _ask(inputs, begun)


def _kept(folder: int, name: str) -> bytes | None:
    try:
        return state_files.read_file(folder, name)
    except FileNotFoundError:
        return None


def _ask(inputs: Inputs, begun: float) -> bool:
    host, boot_id, namespace = here.host_name(), here.boot_id(), here.pid_namespace()
    facts = facts_of(inputs, f"{host}:{boot_id}:{namespace}:", age_s=time.monotonic() - begun, host_s=time.time())
    return settle(inputs, facts)


def facts_of(inputs: Inputs, place: str, *, age_s: float, host_s: float, shift_s: float = 0) -> dict[str, object]:
    """The parameters of the question and of the tick's row.

    *place* is how ``locked_by`` begins here, *age_s* how long ago the tick began, *host_s* this host's clock; *shift_s*
    is added to a server's clock, in tests.
    """
    host, boot_id, _ = place.split(":", 2)
    facts: dict[str, object] = {
        "tick": os.urandom(6).hex(),
        "host": host,
        "boot_id": boot_id,
        "pid": os.getpid(),
        "version": __version__,
        "age_s": round(age_s, 6),
        "host_s": host_s,
        "now_": round(host_s * 1_000_000) if inputs["database"] == "sqlite" else shift_s,
        "place": place,
        "place_length": len(place),
        "most_branches": MANY_QUEUES,
        "beyond_s": float(inputs["beyond_s"]),
        "defines_nothing": int(inputs["defines_nothing"]),
    }
    for name in ("project", "environment", "fingerprint", "schema_revision", "oldest_code"):
        facts[name] = inputs[name]
    return facts


def settle(inputs: Inputs, facts: dict[str, object]) -> bool:
    """Ask the database; if the tick is idle, write its row and return True. Raises whatever goes wrong."""

    def alive(holders: str) -> bool:
        return here.UNKNOWN not in str(facts["place"]).split(":") and all(map(is_alive, holders.split("\n")))

    if inputs["database"] == "sqlite":
        from cronjobs.probe.sqlite import settle_idle as settle_in_file

        return settle_in_file(inputs["path"], facts, alive)
    from cronjobs.probe.postgresql import settle_idle

    return settle_idle("postgresql://" + inputs["address"], inputs["schema"] or None, inputs["libpq"], facts, alive)


def is_alive(locked_by: str) -> bool:
    """Whether a process of this host, by its ``locked_by``, is proven to run; see ``host.identity`` for the rest."""
    fields = locked_by.split(":")
    if len(fields) != 6 or not fields[3].isascii() or not fields[3].isdecimal():
        return False
    return fields[4] != "0" and here.process_started(int(fields[3])) == fields[4]
