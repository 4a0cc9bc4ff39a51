"""The socket to the control plane: Report goes up, Desired comes down; a lost connection is dialled again."""

from __future__ import annotations

import asyncio
import logging
import random

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from agents import VERSION
from agents.decode import BoundedDecoder, Undecodable, sendable
from agents.edge.local_jobs import LocalJobs
from agents.link.enrol import Credentials, machine_id
from agents.link.renewal import Renewal
from agents.link.server import Server
from agents.link.sessions import Sessions
from agents.link.traces import Traces
from agents.patience import within
from agents.protocol import (
    CLOSE_PROTOCOL,
    CLOSE_SECOND_INCARNATION,
    CLOSE_UNAUTHENTICATED,
    LINK_PATH,
    PROTO,
    Conditions,
    Desired,
    InventoryRef,
    Report,
    noted,
)
from agents.supervisor.procfs import boottime
from agents.tasks.node import NodeTasks
from agents.telemetry.host import HostView

log = logging.getLogger("switchyard.agent")

REDIAL_MAX_S = 10.0
REFUSED_REDIAL_S = 30.0
MOST_UNANSWERED = 256
_GAP_S = 0.005
_GAP_PER_PART_S = 0.0002
_GAP_MAX_S = 0.2


def _sentence(note: object) -> str:
    """Return a note as a plain string: msgspec encodes no subclass, and one left in a report would end the link."""
    if isinstance(note, str):
        return str(note)
    raise NotImplementedError(type(note).__name__)


_encode = msgspec.json.Encoder(enc_hook=_sentence).encode


def _encoded(report: Report) -> bytes:
    """Return the report as JSON; a text that is not valid UTF-8, or a number too long, does not hold back the rest."""
    try:
        return _encode(report)
    except (UnicodeEncodeError, OverflowError) as error:
        log.warning("a report held what cannot be sent as it is: %s", error)
        return _encode(sendable(msgspec.to_builtins(report, enc_hook=_sentence)))


_desired = BoundedDecoder[Desired](Desired)


class ServerConnection:
    """One node's connection to the control plane. Answers to its reports renew ``lease``."""

    def __init__(
        self, node: NodeTasks, view: HostView, server: Server, lease: Renewal, credentials: Credentials
    ) -> None:
        self.node = node
        self.view = view
        self.server = server
        self.lease = lease
        self.credentials = credentials
        self.sessions = Sessions(node, server)
        self.traces = Traces(node, server, self.sessions)
        self.seq = 0
        self._is_told = False
        self._full = True
        self._kept_whole = True
        self._faults: list[str] = []
        # What was submitted on the node itself; None if nobody may.
        self.local: LocalJobs | None = None

    async def run(self) -> None:
        """Connect and exchange messages for ever; pauses between attempts grow and have jitter."""
        pause = 0.2
        while True:
            began = boottime()
            dialled_as = self.server.identity.text
            reason = await self._talk()
            if self.server.identity.text != dialled_as:
                pause, reason = 0.2, "lost"
            elif reason == "unknown" and self.credentials.fall_back():
                log.warning("the credential was refused; the former one is tried")
                reason = "lost"
            if boottime() - began > 30:
                pause = 0.2
            wait = pause if reason == "lost" else REFUSED_REDIAL_S
            pause = min(pause * 2, REDIAL_MAX_S)
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))

    async def _talk(self) -> str:
        """Run one connection from dialling to its end; return why it ended.

        Dialling again at once is pointless if it was ``refused``, or if the credential is ``unknown``.
        """
        url = self.server.socket_url(LINK_PATH)
        try:
            async with connect(
                url,
                additional_headers=self.server.headers,
                compression=None,
                max_size=64 << 20,
                open_timeout=10,
                close_timeout=1,
                user_agent_header=f"switchyard-agent/{VERSION}",
            ) as socket:
                log.info("node %s is connected to %s", self.node.name, self.server.url)
                self._full = self._kept_whole = True
                self.lease.connect()
                await self._exchange(socket)
        except ConnectionClosed as error:
            return self._explain(error)
        except InvalidStatus as error:
            log.warning("the control plane refused the link with status %s", error.response.status_code)
            return "refused" if error.response.status_code in (401, 403) else "lost"
        except (OSError, TimeoutError, InvalidHandshake) as error:
            log.info("no link to %s: %s", self.server.url, error or type(error).__name__)
        return "lost"

    def _explain(self, error: ConnectionClosed) -> str:
        code = error.rcvd.code if error.rcvd else None
        told = {
            CLOSE_UNAUTHENTICATED: "does not know this node's credential; remove node.json from the state folder "
            "and join again with a token made for this node",
            CLOSE_PROTOCOL: "does not speak this agent's protocol any more; upgrade the agent",
            CLOSE_SECOND_INCARNATION: "talks to a newer process of this node; is its state folder a copy of another's?",
        }.get(code or 0)
        if told is None:
            log.info("the link to %s closed (%s)", self.server.url, code)
            return "lost"
        why = f" ({error.rcvd.reason})" if error.rcvd and error.rcvd.reason else ""
        log.error("the control plane %s%s", told, why)
        return "unknown" if code == CLOSE_UNAUTHENTICATED else "refused"

    async def _exchange(self, socket: ClientConnection) -> None:
        reader = asyncio.create_task(self._read(socket))
        writer = asyncio.create_task(self._write(socket))
        try:
            done, _ = await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    # -- up

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            self.node.changed.clear()
            at = boottime()
            report = self._report()
            self.lease.sent(self.seq, at)
            await socket.send(report, text=True)
            # Reports are coalesced: the more parts there are, the longer the pause between two.
            await asyncio.sleep(min(_GAP_MAX_S, _GAP_S + _GAP_PER_PART_S * len(self.node.parts)))
            period = self.node.timers.report_s * random.uniform(0.8, 1.2)
            await within(self.node.changed, period)

    def _report(self) -> bytes:
        self.seq += 1
        inventory = InventoryRef(hash=self.view.hash, full=self.view.inventory if self._full else None)
        staging, whole = self.node.staging, self._kept_whole
        offers = self.local.offers(is_first=whole) if self.local is not None else []
        self._full = self._kept_whole = False
        return _encoded(
            Report(
                proto=PROTO,
                agent=VERSION,
                boot_id=self.node.boot_id,
                start_seq=self.node.start_seq,
                seq=self.seq,
                seen_generation=self.node.generation,
                inventory=inventory,
                here=self.node.here(),
                conditions=self._conditions(),
                kept=staging.kept(whole) if staging is not None else None,
                incarnation=self.node.incarnation,
                machine_id=machine_id(),
                sessions=True,
                local=offers,
            )
        )

    def _conditions(self) -> Conditions:
        found = self.view.conditions(self.node.journal.disk_pressure)
        held, notes = self.node.quarantined(), [*self.node.loops.notes(), *filter(None, [self.node.clock])]
        aside = self.node.quarantine.told()
        unfit = [*(self.node.health.sentences() if self.node.health is not None else []), *self.node.troubles()]
        if not held and not notes and not unfit and not aside:
            return found
        found = msgspec.structs.replace(
            found, device_errors=[*found.device_errors, *held], unfit=unfit[:64], aside=aside
        )
        return noted(found, notes)

    def inventory_changed(self) -> None:
        self._full = True
        self.node.changed.set()

    # -- down

    async def _read(self, socket: ClientConnection) -> None:
        async for message in socket:
            try:
                desired = _desired.read(message)
            except Undecodable as error:
                log.warning("a message of the control plane was passed over: %s", error)
                continue
            if desired.faults and desired.faults != self._faults:
                self._faults = desired.faults
                log.error("the control plane did not take all of the report: %s", "; ".join(desired.faults))
            if desired.want_inventory:
                self.inventory_changed()
            self.node.apply(self._leased(desired))
            if self.local is not None and desired.answers_seq != 0:
                self.local.heard()
                self.local.answered(desired.local)
            self.sessions.begin(desired.sessions)
            self.traces.begin(desired.traces)
            if desired.credential and await self._take_credential(desired.credential):
                return

    async def _take_credential(self, credential: str) -> bool:
        """Switch to a new credential; return True if the link must be dialled again with it."""
        try:
            return await asyncio.to_thread(self.credentials.take, credential)
        except OSError as error:
            log.warning("a new credential could not be kept (%s); the old one serves on", error.strerror)
            return False

    def _leased(self, desired: Desired) -> Desired:
        """Renew the lease if this answers a report; while the lease is over, drop orders for parts that need one.

        The answer to the next report, which is sent at once, has these orders again.
        """
        lease_s = desired.timers.lease_s
        self.lease.answered(desired.answers_seq, lease_s, boottime())
        if desired.answers_seq is None and not self._is_told:
            self._is_told = True
            log.warning("the control plane does not say which report it answers: whatever it sends renews the lease")
        if not self.lease.is_over(lease_s, boottime()):
            return desired
        able = [one for one in desired.wanted if one.do != "run" or one.spec is None or one.spec.lease_s is None]
        if len(able) < len(desired.wanted):
            self.node.changed.set()
        return msgspec.structs.replace(desired, wanted=able)
