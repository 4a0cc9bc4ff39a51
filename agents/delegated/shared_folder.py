"""What engines have in common whose jobs see the agent's state folder: the supervisor runs there, and tells it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from agents.delegated import EngineGround, ForeignJob, ForeignOrder
from agents.delegated.package import supervisor_package
from agents.ends import clause
from agents.protocol import Clause
from agents.supervisor.record import GUEST, shim_record, write_whole
from agents.supervisor.small_file import content

# The interpreter on the engine's nodes.
Program = Annotated[str, Meta(pattern=r"\A/[A-Za-z0-9_.+@/-]{0,399}\Z")]
_SIGNAL: Final = re.compile(r"SIG[A-Z0-9]{2,10}")
Options = TypeVar("Options")
OfShape = TypeVar("OfShape")


class SharedFolderEngine(Generic[Options, OfShape]):
    """See :class:`agents.delegated.DelegatedEngine`. The operator's options are read into these two shapes; those that
    are refused raise ValueError with a sentence."""

    title: str
    shares_folder = True
    lacks: tuple[Clause, ...] = (
        clause("LacksSessions"),
        clause("LacksShares"),
        clause("LacksContainers"),
        clause("LacksGangs"),
        clause("LacksLeases"),
        clause("LacksParts"),
        clause("LacksUsers"),
        clause("LacksMemorySecrets"),
        clause("LacksSamples"),
    )

    def __init__(self, ground: EngineGround, kind: type[Options], of_shape: type[OfShape]) -> None:
        self.tag = ground.tag
        try:
            self.options: Options = msgspec.convert(ground.options, kind)
            self.shapes = {name: msgspec.convert(given, of_shape) for name, given in ground.shapes.items()}
        except msgspec.ValidationError as error:
            raise ValueError(f"an option of {self.title} is refused: {error}") from error
        self.package = supervisor_package(ground.state)

    def lay_out(self, order: ForeignOrder) -> None:
        """Nothing: the order of the supervisor is there already."""

    def order_signal(self, order: ForeignOrder, name: str) -> bool:
        """Write down, for the supervisor, a signal to the main process; return whether there is one to be told."""
        main = (shim_record(order.folder) or {}).get("main")
        if not main or not _SIGNAL.fullmatch(name):
            return False
        words = ["/bin/sh", "-c", 'kill -s "$1" "$2"', "sh", name.removeprefix("SIG"), str(main)]
        write_whole(f"{order.folder}/{GUEST}", {"argv": words, "env": {}})
        return True

    def last_words(self, order: ForeignOrder) -> Sequence[Clause]:
        """Return what was printed before the supervisor ran, such as that there is no Python on its node."""
        words = " ".join((content(f"{order.folder}/foreign.log") or b"")[-400:].decode(errors="replace").split())
        return [clause("ForeignLog", words=words.replace("\0", ""))] if words else []

    def read(self, job: ForeignJob, order: ForeignOrder, stream: str, offset: int, most: int) -> bytes:
        """Never called: the folder is shared."""
        return b""
