"""Record an exec run through a recorder process. If the recorder fails or is too slow, spool the run.

exec forks the recorder when the command has started. While the command runs, the recorder does its imports, writes the
row of a running job, and waits a while for the command to end. If the command runs longer, exec later forks a second
recorder to write the outcome. No recorder can change how exec exits. After the command has ended, exec waits at most
``PATIENCE_S`` for the recorder.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import select
import time

from cronjobs.contrib.exec import RECORDED, REFUSED, spool
from cronjobs.contrib.exec.copying import KEPT, close_all_but, signals_as_before
from cronjobs.engine.probe import kernel_facts
from cronjobs.engine.probe.state_files import spool_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cronjobs.contrib.exec.arguments import ExecArguments
    from cronjobs.contrib.exec.copying import OutputTail

PATIENCE_S = 2.0  # exec waits this many seconds for a recorder after the command has ended


class Recording:
    """Records one run. Never raises."""

    def __init__(self, given: ExecArguments, began: tuple[float, float]) -> None:
        self.began, self.began_mono = began
        self.token = os.urandom(8).hex()
        self.config = config_of(given)
        self.url = given.database_url or os.environ.get("CRONJOBS_DATABASE_URL") or None
        self.orders: int | None = None  # the descriptor of the pipe to the recorder
        self.reply: int | None = None  # the descriptor of the pipe from the recorder
        self.refused = ""  # why the configuration cannot be used, if that is why the run was spooled
        self.facts: dict[str, Any] = {
            "token": self.token,
            "name": given.name,
            "cron": given.cron,
            "began": self.began,
            "locked_by": ":".join(
                (
                    *(kernel_facts.host_name(), kernel_facts.boot_id(), kernel_facts.pid_namespace()),
                    *(str(os.getpid()), kernel_facts.process_started(os.getpid()) or "0", self.token),
                )
            ),
        }

    def begin(self) -> None:
        """Start a recorder while the command is running."""
        try:
            self._start_recorder()
        except OSError:  # the fork failed, and end() will try again
            pass

    def end(self, status: int, tail: OutputTail, failure: str) -> str | None:
        """Write or spool the outcome. Return None, or why neither was possible."""
        took = time.monotonic() - self.began_mono
        give_up_at = time.monotonic() + PATIENCE_S
        run = self.facts | {
            "ended": self.began + took,
            "took": took,
            "status": status,
            "failure": failure,
            "output": tail.bytes(),
            "output_size": tail.size,
        }
        why = ""
        try:
            for _ in range(2):  # try the recorder that waits, then a new recorder
                if self.orders is None:
                    self._start_recorder()
                why = self._send_to_recorder(run, give_up_at) or ""
                if not why:
                    return None
                self._leave_recorder()
                if self.refused or time.monotonic() + PATIENCE_S / 4 > give_up_at:
                    break
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        try:
            kept = run | {"output": run["output"].decode("latin-1"), "why": why[:500], "config": self.config}
            unkept = spool.put(spool_address(self.config, self.url), kept)
        except Exception as error:
            unkept = f"{type(error).__name__}: {error}"
        return f"{why}; {unkept}" if unkept else None

    def is_worth_reporting(self) -> bool:
        """Whether to report ``refused`` now: at once, then hourly, and after a day only daily. Never raises."""
        try:
            from cronjobs.clock import SYSTEM
            from cronjobs.contrib.exec.refusals import refusals

            return refusals(self.config, self.url).worth_mailing(self.refused, SYSTEM.now())
        except Exception:
            return True

    # --- the recorder -----------------------------------------------------------------------------------------------

    def _start_recorder(self) -> None:
        orders_out, orders = os.pipe()
        # Make room in the pipe for the whole run, so that a slow recorder can still read the run after exec has exited.
        try:
            fcntl.fcntl(orders, fcntl.F_SETPIPE_SZ, 4 * KEPT)
        except (OSError, AttributeError):
            pass
        reply, reply_in = os.pipe()
        try:
            child = os.fork()
        except OSError:
            for descriptor in (orders_out, orders, reply, reply_in):
                os.close(descriptor)
            raise
        if not child:
            self._be_the_recorder(orders_out, reply_in)
        os.close(orders_out)
        os.close(reply_in)
        os.set_blocking(orders, False)
        self.orders, self.reply = orders, reply

    def _be_the_recorder(self, orders: int, reply: int) -> None:
        try:
            os.setsid()  # so that a signal to the command's process group does not end the recorder
            signals_as_before()
            null = os.open(os.devnull, os.O_RDWR)
            # With exec's stdout and stderr open, their reader would wait for the recorder.
            for descriptor in range(3):
                os.dup2(null, descriptor)
            close_all_but([orders, reply])
            from cronjobs.contrib.exec.recorder import record

            record(self.facts, self.config, self.url, orders, reply)
        except BaseException as error:
            mark = REFUSED if getattr(error, "exit_code", None) == 3 else b"-"
            try:
                os.write(reply, mark + f"{type(error).__name__}: {error}".encode(errors="replace")[:500])
            except OSError:
                pass
        finally:
            os._exit(0)

    def _send_to_recorder(self, run: dict[str, Any], give_up_at: float) -> str | None:
        """Send *run* and wait for the answer. Return None if the run was recorded, else why not."""
        assert self.orders is not None
        assert self.reply is not None
        unsent = marshal.dumps(run)
        said = b""
        while (left := give_up_at - time.monotonic()) > 0:
            poll = select.poll()
            if unsent:
                poll.register(self.orders, select.POLLOUT)
            poll.register(self.reply, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
            if self.orders in ready:
                try:
                    unsent = unsent[os.write(self.orders, unsent) :]
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    unsent = b""
                if not unsent:
                    os.close(self.orders)
                    self.orders = -1
            if self.reply in ready:
                more = os.read(self.reply, 4096)
                said += more
                if said.startswith(RECORDED):
                    return None
                if not more:
                    why = said[1:].decode(errors="replace") or "the recorder ended early"
                    self.refused = why if said.startswith(REFUSED) else ""
                    return why
        return f"the recorder took more than {PATIENCE_S:g} s"

    def _leave_recorder(self) -> None:
        for descriptor in (self.orders, self.reply):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self.orders = self.reply = None


def config_of(given: ExecArguments) -> str | None:
    """Return the absolute path of --config, else $CRONJOBS_CONFIG, else ./cronjobs.yaml if it exists, else None."""
    named = given.config or os.environ.get("CRONJOBS_CONFIG") or None
    try:
        folder = os.getcwd()
    except OSError:
        folder = "/"
    if named is not None:
        return os.path.join(folder, named)
    file = os.path.join(folder, "cronjobs.yaml")
    return file if os.path.exists(file) else None
