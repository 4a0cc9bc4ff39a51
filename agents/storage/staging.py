"""Stages inputs in before parts start, and outputs out when they end, by digest.

Inputs are fetched into the content store and laid out in the part's scratch folder; outputs are stored in it and
reported by digest. The content that a part uses is recorded in its run folder, so that neither an eviction nor a
restart of the agent removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Final

import msgspec

from agents.decode import BoundedDecoder
from agents.ends import clause
from agents.isolation import beneath
from agents.isolation.beneath import FileRights, Folder
from agents.patience import within
from agents.protocol import Code, Input, Kept, LinkOrder, Name, Output, PartSpec, Source, Text
from agents.storage import manifest
from agents.storage.content_store import ContentStore, Full
from agents.storage.fetch import Fetcher, Unfetched
from agents.storage.manifest import FolderManifest, UnfitFile
from agents.storage.peers import Keys, PeerServer
from agents.supervisor.record import write_whole

log = logging.getLogger("switchyard.agent")
NOTE: Final = "staging.json"
LEFT: Final = "outputs.json"
REPORTED: Final = 2_000
INPUTS: Final = "inputs"


class Staged(msgspec.Struct, frozen=True):
    """The content that a part uses, and its outputs. Without ``uid`` it was written by an agent with one user for all
    stages."""

    roots: Annotated[list[Name], msgspec.Meta(max_length=100_000)] = msgspec.field(default_factory=list)
    outputs: Annotated[list[Text], msgspec.Meta(max_length=100_000)] = msgspec.field(default_factory=list)
    output_dir: Text = ""
    is_shared: bool = False
    uid: Code | None = None
    gid: Code | None = None


class Left(msgspec.Struct, frozen=True):
    """The outputs of a part, by digest."""

    outputs: Annotated[list[Output], msgspec.Meta(max_length=100_000)] = msgspec.field(default_factory=list)


_staged, _left = BoundedDecoder[Staged](Staged), BoundedDecoder[Left](Left)


class Staging:
    """The inputs and outputs of one node. Blocking work runs in ``pool``, so a slow disk or peer does not delay the
    journal."""

    def __init__(
        self,
        runs: Path,
        store: ContentStore,
        fetcher: Fetcher,
        keys: Keys,
        url: str = "",
        peers: PeerServer | None = None,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self.runs, self.store, self.fetcher, self.keys, self.url, self.peers = runs, store, fetcher, keys, url, peers
        self._loop = asyncio.get_running_loop()
        self._told = told
        fetcher.changed = self.changed
        self.pool = ThreadPoolExecutor(4, thread_name_prefix="staging")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._starting: dict[str, set[str]] = {}
        self._wanted: dict[str, Input] = {}
        self._measured_rev = 0
        self._stirred = asyncio.Event()
        self._news = True
        store.pinned = self.pinned

    # -- pins

    def pinned(self) -> set[str]:
        """Return the roots of parts that are about to start or still have a run folder."""
        used = set().union(*self._starting.values()) if self._starting else set()
        for note in self.runs.glob(f"*/{NOTE}"):
            used |= set((_staged.find(str(note)) or Staged()).roots)
        return used

    # -- before a part starts

    def gather(self, part: str, spec: PartSpec, cancelled: Callable[[], bool]) -> None:
        """Fetch all inputs of a part. Blocks. Raises Unfetched; :meth:`settle` must be called in any case."""
        self._starting[part] = {wanted.digest for wanted in spec.inputs}
        for wanted in spec.inputs:
            if not wanted.path:
                self.fetcher.fetch(wanted, spec.rank, len(spec.nodes), cancelled)

    def lay_out(self, run_folder: Path, scratch: Path, spec: PartSpec, shared: str, rights: FileRights) -> None:
        """Lay out a part's inputs under ``inputs`` of its scratch folder, and record what it uses and its outputs.

        ``shared`` is the folder with the outputs of all stages if the pool has shared storage; they are linked too.
        Files there, and the part's outputs, are accessed with ``rights``.
        """
        if spec.inputs:
            folder = scratch / INPUTS
            folder.mkdir(mode=0o755, exist_ok=True)
            for wanted in spec.inputs:
                self._show(wanted, _place(folder, wanted.name), spec)
            if shared:
                self._link_the_rest(shared, folder, rights)
        told = {
            "roots": [wanted.digest for wanted in spec.inputs if not wanted.path],
            "outputs": spec.outputs if spec.rank == 0 else [],
            "output_dir": spec.output_dir,
            "is_shared": bool(shared),
            "uid": rights.uid,
            "gid": rights.gid,
        }
        if told["roots"] or told["outputs"]:
            write_whole(str(run_folder / NOTE), told)

    def _show(self, wanted: Input, target: Path, spec: PartSpec) -> None:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if wanted.path:
            if wanted.shard and len(spec.nodes) > 1:
                raise Unfetched(f'input "{wanted.name}" lies on a shared disk; share its files out by YARD_NODE_RANK')
            target.symlink_to(wanted.path)
            return
        self.store.touch(wanted.digest)
        if wanted.kind == "file":
            self.store.lay_out_file(wanted.digest, target)
            return
        whole = self.store.manifest(wanted.digest)
        if whole is None:
            raise Unfetched(f'input "{wanted.name}" was dropped again before its stage started')
        entries = manifest.share(whole, spec.rank, len(spec.nodes)) if wanted.shard else whole.files
        if not whole.is_file:
            target.mkdir(mode=0o755, exist_ok=True)
        self.store.lay_out(entries, target.parent if whole.is_file else target)

    @staticmethod
    def _link_the_rest(shared: str, folder: Path, rights: FileRights) -> None:
        """Link the outputs of other stages on shared storage by name, beside the inputs by digest."""
        with contextlib.suppress(OSError), Folder(shared, rights) as there:
            for name, _ in there.entries(most=manifest.MAX_FILES):
                target = folder / name
                if not os.path.lexists(target):
                    target.symlink_to(f"{shared}/{name}")

    async def gathered(self, part: str, spec: PartSpec, cancelled: Callable[[], bool]) -> None:
        """Run :meth:`gather` off the loop."""
        await asyncio.get_running_loop().run_in_executor(self.pool, self.gather, part, spec, cancelled)

    def settle(self, part: str) -> None:
        """Release the pins of a part that now has its run folder, or will never have one."""
        self._starting.pop(part, None)

    # -- outputs

    @staticmethod
    def leaves_outputs(run_folder: str) -> bool:
        """Whether the part has outputs by digest."""
        return bool((_staged.find(f"{run_folder}/{NOTE}") or Staged()).outputs)

    def keep_outputs(self, run_folder: str) -> list[Output]:
        """Store the outputs of a completed part. Blocks. Raises UnfitFile with a sentence if something is missing."""
        told = _staged.find(f"{run_folder}/{NOTE}") or Staged()
        found: list[Output] = []
        # A record of an old agent names no user: then there was one user for all stages.
        rights = FileRights(told.uid, told.gid) if told.uid is not None else self.fetcher.rights
        for name in told.outputs:
            try:
                what = self._keep(told.output_dir, name, told.is_shared, rights)
            except (UnfitFile, Full) as error:
                raise UnfitFile(clause("OutputNotKept", name=name, error=str(error))) from error
            except OSError as error:
                raise UnfitFile(clause("OutputNotRead", name=name, error=error.strerror or str(error))) from error
            found.append(Output(name, what.digest, what.size, len(what.files)))
        write_whole(f"{run_folder}/{LEFT}", {"outputs": msgspec.to_builtins(found)}, sync=True)
        self.changed()
        return found

    def _keep(self, output_dir: str, name: str, is_shared: bool, rights: FileRights) -> FolderManifest:
        """Return one output by digest, stored in the content store unless its pool has shared storage."""
        try:
            with Folder(output_dir, rights) as folder:
                what = manifest.of(folder, name, None if is_shared else self.store.cap_bytes)
                if not is_shared:
                    self.store.put(folder, name, what)
                return what
        except FileNotFoundError:
            raise UnfitFile(f"nothing lies at {output_dir}/{name}") from None

    async def left_by(self, run_folder: str) -> list[Output]:
        """Run :meth:`keep_outputs` off the loop."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, self.keep_outputs, run_folder)

    @staticmethod
    def left(run_folder: str) -> list[Output]:
        """Return what :meth:`keep_outputs` found before the agent was restarted."""
        return (_left.find(f"{run_folder}/{LEFT}") or Left()).outputs

    # -- prefetching

    def want(self, inputs: list[Input]) -> None:
        """Set the inputs of stages planned for this node; replaces the former ones."""
        wanted = {each.digest: each for each in inputs if not each.path}
        if wanted.keys() != self._wanted.keys():
            self._wanted = wanted
            self._stirred.set()

    def measure(self, order: LinkOrder | None) -> None:
        """Measure the bandwidth from another node, once per order."""
        if order is not None and order.rev != self._measured_rev:
            self._measured_rev = order.rev
            # In turn with prefetching, which would disturb it and be disturbed.
            self._ahead.submit(self._measure, Source(order.node, order.url, order.ticket))

    def _measure(self, peer: Source) -> None:
        try:
            self.fetcher.measure(peer)
        except (OSError, http.client.HTTPException, UnfitFile, ValueError) as error:
            log.info("the link from node %s was not measured: %s", peer.node, error)

    async def run(self) -> None:
        """Prefetch wanted inputs for ever, one at a time, and cancel one that is no longer wanted."""
        loop = asyncio.get_running_loop()
        while True:
            for wanted in list(self._wanted.values()):
                if wanted.digest in self.store.roots() or wanted.shard:
                    continue
                try:
                    await loop.run_in_executor(self._ahead, self._fetch_ahead, wanted)
                except Unfetched as error:
                    log.info("not fetched ahead: %s", error)
            self._stirred.clear()
            if not await within(self._stirred, 30.0) and self.keys.rotate():
                self.changed()

    def _fetch_ahead(self, wanted: Input) -> None:
        self.fetcher.fetch(wanted, cancelled=lambda: wanted.digest not in self._wanted)

    # -- reports

    def changed(self) -> None:
        """Note that there is something to report. May be called from any thread."""
        self._news = True
        with contextlib.suppress(RuntimeError):  # the agent ends
            self._loop.call_soon_threadsafe(self._told)

    def kept(self, whole: bool) -> Kept | None:
        """Return the stored roots if they changed since the last call, or if ``whole``."""
        if not (self._news or whole):
            return None
        self._news = False
        return Kept(self.store.roots()[:REPORTED], self.url, self.keys.current if self.url else "")

    def close(self) -> None:
        self._wanted = {}
        for pool in (self.pool, self._ahead):
            pool.shutdown(wait=False, cancel_futures=True)
        if self.peers is not None:
            self.peers.close()


def _place(folder: Path, name: str) -> Path:
    """Return the path of an input of this name. Raises Unfetched for a name that leads out of the folder."""
    try:
        steps = beneath.steps(name)
    except OSError:
        raise Unfetched(f"an input is named {name!r}, which does not stay in its folder") from None
    above = [folder.joinpath(*steps[:count]) for count in range(1, len(steps))]
    if any(each.is_symlink() for each in above):
        raise Unfetched(f'input "{name}" would lie in another input; give it another name')
    return folder.joinpath(*steps)
