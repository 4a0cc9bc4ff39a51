"""The agents' WebSocket: receives Report messages and sends Desired messages.

The socket keeps no state of its own: whatever is lost with a connection is repeated by the next message.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import msgspec
from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError, DataError, IntegrityError, close_old_connections

from agents import protocol
from agents.protocol import Desired, Report
from controlplane.clauses import Told, clause, joined, of_error, told, verbatim
from controlplane.dispatch import desired, report_decoder
from controlplane.fleet import alarms
from controlplane.fleet import service as fleet
from controlplane.fleet.identity import Caller, ReportVerdict
from controlplane.jobs import record
from controlplane.local_jobs.join import join
from controlplane.socket_authorization import AuthorizationWatch

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
MESSAGE_LIMIT = 16 * 2**20
# A node that sends reports faster than they are recorded is read no faster than this.
FLOOD_PAUSE_S = 0.05
standing: AuthorizationWatch[uuid.UUID, fleet.AgentStanding] = AuthorizationWatch(fleet.standing)


@dataclass(frozen=True, slots=True)
class Received:
    """A report that is not recorded yet, what of it could not be read, and why its inventory was refused."""

    report: Report
    faults: list[Told]
    refused: Told | None

    def after(self, earlier: Received) -> Received:
        """Return this report with what only the earlier one has: content that a node sends once after a change."""
        report, refused = self.report, self.refused
        if report.kept is None:
            report = msgspec.structs.replace(report, kept=earlier.report.kept)
        if report.inventory.full is None and report.inventory.hash == earlier.report.inventory.hash:
            report, refused = msgspec.structs.replace(report, inventory=earlier.report.inventory), earlier.refused
        return Received(report, self.faults, refused)


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
    def call() -> T:
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return sync_to_async(call, thread_sensitive=False)()


class AgentLink(AsyncWebsocketConsumer):
    """The connection of one agent. Sends orders when the node is nudged and with the answer to each report.

    It is closed within two seconds after its credential was replaced or revoked.
    """

    node_id: uuid.UUID
    name = ""
    group = ""
    closing: asyncio.Task[None] | None = None
    _late: asyncio.Task[None] | None = None
    _waiting: Received | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answering: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        header = dict(self.scope["headers"]).get(b"authorization", b"").decode("latin-1")
        node = await in_thread(fleet.authenticate, header)
        if node is None:
            await self.close(protocol.CLOSE_UNAUTHENTICATED)
            return
        self.node_id, self.name, self.group = node.id, node.name, f"node.{node.id}"
        self.credential = node.credential_digest
        self.caller = Caller(opened_at=await in_thread(fleet.now_in_database))
        self.incarnation = ""
        self.generation = 0
        # Whether a new credential is due, and was sent on this connection.
        self._rotation_due = self._rotated = False
        # Orders are sent only to the incarnation that speaks for the node: none does before one of its reports was
        # accepted.
        self._heard = self._opens_sessions = False
        self.known: dict[str, int] = {}
        # The inventory that was refused last, which is not requested again, and the last complaint about reports.
        self._refused = ""
        self._forgotten: set[str] = set()
        self._said: Told | None = None
        self._busy = asyncio.Lock()
        self._stale = False
        await self.accept()
        standing.enter(self, node.id, self._check)
        try:
            await self.channel_layer.group_add(self.group, self.channel_name)
        except Exception as error:  # noqa: BLE001  without Redis orders still leave with every report
            log.warning("node %s is not nudged for now: %s", node.name, error)

    def _check(self, now: fleet.AgentStanding | None) -> None:
        if self.closing is not None:
            return
        self._rotation_due = now is not None and now.is_rotation_due
        if now is None or now.credential != self.credential:
            log.warning("the credential of node %s was revoked or made anew; its connection is closed", self.node_id)
            self.closing = asyncio.create_task(self.close(protocol.CLOSE_UNAUTHENTICATED))
        elif self.incarnation and now.incarnation != self.incarnation:
            self.closing = asyncio.create_task(self.close(protocol.CLOSE_SECOND_INCARNATION))
        elif self.incarnation and now.generation > self.generation and not self._stale:
            # A hint may be lost, so this periodic check is what is relied on.
            self._late = asyncio.create_task(self.nudge({}))

    async def session_open(self, event: dict[str, Any]) -> None:
        """Handle a request to enter a part of this node by sending the agent its current orders."""
        if not self._heard:
            return
        if not self._opens_sessions:
            await self.channel_layer.send(event["caller"], {"type": "session.cut", "why": "GuestOld"})
            return
        async with self._busy:
            try:
                message = await in_thread(desired.compose, self.node_id, self.known)
            except Exception as error:  # noqa: BLE001  nobody's line to their node ends for it
                log.warning("a session on node %s could not be asked for: %s", self.name, error)
                await self.channel_layer.send(event["caller"], {"type": "session.cut", "why": "GuestSilent"})
                return
            order = protocol.SessionOrder(id=event["session"], part=event["part"])
            await self._send(msgspec.structs.replace(message, sessions=[order]))

    async def recheck(self, event: dict[str, Any]) -> None:
        """Check whether the credential is still valid."""
        standing.hurry()

    async def disconnect(self, code: int) -> None:
        await asyncio.gather(*self._answering, return_exceptions=True)  # the last report of a node that leaves counts
        await standing.leave(self)
        if self.group:
            try:
                await self.channel_layer.group_discard(self.group, self.channel_name)
            except Exception:
                log.debug("leaving %s failed", self.group, exc_info=True)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        raw = bytes_data if bytes_data is not None else (text_data or "").encode()
        try:
            if len(raw) > MESSAGE_LIMIT:
                much = told(clause("TooManyBytes", size=len(raw), most=MESSAGE_LIMIT))
                raise report_decoder.UnreadableReport(much)
            received = Received(*report_decoder.report(raw))
        except report_decoder.UnreadableReport as error:
            await in_thread(self._record_fault, told(clause("ReportRefused", fault=error.why)))
            why = alarms.sentence(error, 100).encode("ascii", "replace").decode()
            await self.close(protocol.CLOSE_PROTOCOL, reason=why)
            return
        if self._waiting is not None:
            # A report is the whole state of its node: of those that wait, only the newest counts.
            self._waiting = received.after(self._waiting)
            await asyncio.sleep(FLOOD_PAUSE_S)
            return
        self._waiting = received
        task = asyncio.create_task(self._answer_waiting())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_waiting(self) -> None:
        """Record the newest report and answer it, once the one before it is answered."""
        async with self._busy:
            received, self._waiting = self._waiting, None
            if self.closing is not None or received is None:
                return
            try:
                answer, message = await in_thread(self._take, received.report, received.faults, received.refused)
            except DatabaseError as error:
                # Without an answer the agent keeps its parts running and reports again.
                log.warning("a report of node %s could not be recorded: %s", self.name, error)
                if isinstance(error, DataError | IntegrityError):
                    fault = verbatim(str(error))
                    await in_thread(self._record_fault, told(clause("ReportUnrecorded", fault=fault)))
                return
            except Exception as error:
                log.exception("a report of node %s could not be taken", self.name)
                await in_thread(self._record_fault, told(clause("ReportRefused", fault=of_error(error))))
                return
            if answer.verdict in (ReportVerdict.FENCED, ReportVerdict.COPY):
                why = alarms.sentence(answer.says.text, 100).encode("ascii", "replace").decode()
                await self.close(protocol.CLOSE_SECOND_INCARNATION, reason=why)
                return
            await self._send(message)

    def _take(
        self, report: Report, faults: list[Told], refused: Told | None
    ) -> tuple[record.ReportAnswer, Desired | None]:
        answer = record.report(self.node_id, report, self.caller)
        if answer.verdict is not ReportVerdict.TAKEN:
            return answer, None
        self.incarnation, self._heard = report.incarnation, True
        self._opens_sessions = report.sessions
        if refused or report.inventory.full is not None:
            self._refused = report.inventory.hash if refused else ""
            alarms.raised(alarms.INVENTORY, {self.name: refused} if refused else {}, about=self.name)
        if report.inventory.hash == self._refused:
            answer.want_inventory = False
        self._record_fault(joined(faults, "Also"))
        self.known = {item.part: item.phase for item in report.here}
        message = desired.compose(
            self.node_id,
            self.known,
            answers_seq=report.seq,
            accepted=answer.accepted,
            refused=answer.refused,
            unknown=answer.unknown,
            forget=answer.forget,
            leftovers=answer.leftovers,
            want_inventory=answer.want_inventory,
            min_proto=protocol.MIN_PROTO,
            faults=[fault.text for fault in (*faults, *([refused] if refused else []))],
            local=join(self.node_id, report.local),
        )
        self._note_forgotten(message)
        if self._rotation_due and not self._rotated:
            self._rotated = True
            message = msgspec.structs.replace(message, credential=fleet.next_credential(self.node_id))
        return answer, message

    def _note_forgotten(self, message: Desired) -> None:
        """Note parts that the node acknowledged earlier and no longer knows; they are not ordered again."""
        forgotten = {each.part for each in message.wanted if each.do == "run" and each.spec is None} - set(self.known)
        if forgotten != self._forgotten:
            self._forgotten = forgotten
            record.forgotten(self.node_id, forgotten)

    def _record_fault(self, says: Told) -> None:
        """Record on the node what is wrong with its reports, or that nothing is any more."""
        if says != self._said:
            try:
                alarms.raised(alarms.REPORT, {self.name: says} if says else {}, about=self.name)
                self._said = says
            except DatabaseError as error:
                log.warning("node %s: %s (and this could not be noted: %s)", self.name, says.text, error)

    async def nudge(self, event: dict[str, Any]) -> None:
        """Handle a change of the node's orders; several nudges during one answer count once."""
        if self._stale or not self._heard:
            return
        self._stale = True
        async with self._busy:
            self._stale = False
            try:
                await self._send(await in_thread(desired.compose, self.node_id, self.known))
            except DatabaseError as error:
                log.warning("orders of node %s could not be read: %s", self.name, error)
            except Exception as error:
                log.exception("orders of node %s could not be made", self.name)
                await in_thread(self._record_fault, told(clause("NoOrders", fault=of_error(error))))

    async def _send(self, message: Desired | None) -> None:
        if message is not None:
            self.generation = message.generation
            await self.send(text_data=_encode(message).decode())
