"""Tries one door with many inputs, in a process of its own: ``worker.py ROOT MODULE DOOR INPUTS SEED FOLDER``.

Standard output has one line for each input that something else than a declared error came of, and a last one with the
count of inputs; a process that ends before that is a death too.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bench.doors.door import Door

_TOLD_EVERY = 2000
_MOST_SHOWN = 20


def _is_taken(door: "Door", content: bytes) -> bool:
    try:
        door.take(content)
    except door.declared:
        return False
    return True


def main(root: str, module: str, name: str, inputs: str, seed: str, folder: str) -> int:
    sys.path.insert(0, root)
    if module == "shim":
        __import__("agents.supervisor.fork_server")
    doors = __import__(f"bench.doors.{module}", fromlist=["DOORS"]).DOORS
    from bench.doors.mutation import Mutation

    door = doors[name](folder)
    if not sum(_is_taken(door, good) for good in door.seeds):
        raise SystemExit(f"{name} takes none of its good inputs: nothing would be tried")
    # A scanner without ``json`` fails in its own ways: a shim has none, nor have its doors when they are tried.
    with_json = int(module == "shim" and "json" in sys.modules)
    inputs_of = Mutation(door.seeds, int(seed))
    deaths = 0
    for done in range(int(inputs)):
        content = inputs_of.next()
        try:
            door.take(content)
        except door.declared:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever comes out here would have ended who reads
            deaths += 1
            if deaths <= _MOST_SHOWN:
                said = ascii(f"{type(error).__name__}: {error}"[:200])
                print(f"death {said} of {content[:2000].hex()}", flush=True)
        if done % _TOLD_EVERY == 0:
            print("goes on", flush=True)
    print(f"done {inputs} {deaths} {with_json}", flush=True)
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
