"""A real SMTP server in this process, which fails as planned, and keeps the mails that it accepted.

The drill judges by these mails, not by rows in the database. Only this module uses aiosmtpd.
"""

from __future__ import annotations

import asyncio
import email
import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from cronjobs.clock import SYSTEM
from cronjobs.contrib.drill.plan import Mishap, Planned, meets
from cronjobs.errors import CronjobsError

PACE_S: Final = 0.01  # the server takes this many seconds to accept a message
POLL_S: Final = 0.005
ADDRESS: Final = re.compile(r"customer-([0-9]+)@")


class MailServerMissing(CronjobsError):
    exit_code = 2

    def __init__(self) -> None:
        super().__init__("the drill runs a real mail server, which is not installed: pip install 'cronjobs[drill]'")


@dataclass(frozen=True)
class Try:
    """A try to send a receipt, at the monotonic instant ``at``. ``met`` is how it failed, or None if it succeeded."""

    receipt: int
    met: Mishap | None
    at: float


@dataclass(frozen=True)
class ReceivedMail:
    receipt: int
    message_id: str


class MailServer:
    """The mail server. Its thread only appends to ``tries`` and ``mailbox``, so other threads may read them."""

    def __init__(self, planned: Mapping[int, Planned]) -> None:
        self.tries: list[Try] = []
        self.mailbox: list[ReceivedMail] = []
        self.corrected = False  # whether the wrong addresses have been corrected
        self.hold_after: int | None = None  # after this many mails, hold back the answers to all further mails
        self.waiting_for_answer = 0
        self._planned = planned
        self._tried: Counter[int] = Counter()
        self._controller: Any = None

    @property
    def port(self) -> int:
        return int(self._controller.port)

    def copies(self) -> Counter[int]:
        """Count the mails of each receipt."""
        return Counter(mail.receipt for mail in self.mailbox)

    def message_ids(self) -> set[str]:
        return {mail.message_id for mail in self.mailbox}

    def hold(self, after: int = 0) -> None:
        """When *after* mails have arrived, accept further mails but hold back the answers."""
        self.hold_after = after

    def release(self) -> None:
        self.hold_after = None

    def __enter__(self) -> MailServer:
        self._controller = _controller(self)
        # aiosmtpd logs clients that vanish, which the drill's clients do on purpose.
        logging.getLogger("mail.log").setLevel(logging.CRITICAL + 1)
        self._controller.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.release()
        self._controller.stop()

    # --- callbacks of aiosmtpd, in its loop's thread -----------------------------------------------------------------

    async def handle_RCPT(  # noqa: N802
        self, server: Any, _session: Any, envelope: Any, address: str, _options: list[str]
    ) -> str:
        found = ADDRESS.match(address)
        if found is None:
            return "553 5.1.3 this server knows customers only"
        receipt = int(found[1])
        match self._meets(receipt):
            case Mishap.BUSY as met:
                self._note(receipt, met)
                return "450 4.2.1 try again later"
            case Mishap.NO_SUCH_ADDRESS as met:
                self._note(receipt, met)
                return "550 5.1.1 no such address"
            case Mishap.HANGS_UP as met:
                self._note(receipt, met)
                return self._hang_up(server)
            case Mishap.SILENT as met:
                self._note(receipt, met)
                await asyncio.sleep(3600)  # until the sender gives up and hangs up
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(self, server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        await asyncio.sleep(PACE_S)
        message = email.message_from_bytes(envelope.original_content)
        found = ADDRESS.match(envelope.rcpt_tos[0])
        assert found is not None  # handle_RCPT accepts only such addresses
        mail = ReceivedMail(int(found[1]), str(message["Message-ID"]))
        met = self._meets(mail.receipt)
        self._note(mail.receipt, met)
        match met:
            case Mishap.BUSY_AFTER_MESSAGE:
                return "451 4.3.0 try again later"
            case Mishap.LOST_UNANSWERED:
                return self._hang_up(server)
            case Mishap.KEPT_UNANSWERED:
                self.mailbox.append(mail)
                return self._hang_up(server)
        self.mailbox.append(mail)
        await self._answer_is_due()
        return "250 2.0.0 taken"

    async def _answer_is_due(self) -> None:
        if self.hold_after is None or len(self.mailbox) <= self.hold_after:
            return
        self.waiting_for_answer += 1
        try:
            while self.hold_after is not None:
                await asyncio.sleep(POLL_S)
        finally:  # aiosmtpd cancels this callback if the sender was killed
            self.waiting_for_answer -= 1

    def _meets(self, receipt: int) -> Mishap | None:
        return meets(self._planned.get(receipt), self._tried[receipt], self.corrected)

    def _note(self, receipt: int, met: Mishap | None) -> None:
        self._tried[receipt] += met is not None
        self.tries.append(Try(receipt, met, SYSTEM.monotonic()))

    @staticmethod
    def _hang_up(server: Any) -> str:
        server.transport.abort()
        return "421 4.4.2 gone"  # nobody reads this answer


def _controller(server: MailServer) -> Any:
    """Make an aiosmtpd controller on a free port of 127.0.0.1. Raises MailServerMissing."""
    try:
        from aiosmtpd.controller import Controller
    except ImportError:
        raise MailServerMissing from None

    class OnFreePort(Controller):
        def _trigger_server(self) -> None:
            server: Any = self.server
            # We asked for port 0, which means any free port. The socket knows which.
            self.port = server.sockets[0].getsockname()[1]
            super()._trigger_server()  # type: ignore[no-untyped-call]

    return OnFreePort(server, hostname="127.0.0.1", port=0)
