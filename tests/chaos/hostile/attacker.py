"""The process of a hostile client: `python -m tests.chaos.hostile.attacker PORT KEY BEHAVIOUR...`.

Goes on until its standard input closes; then it prints, as JSON, how many answers of each class it got. It
runs at the lowest priority: its own computing must not pass for the system's.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tests.chaos.hostile.behaviours import BEHAVIOURS
from tests.chaos.hostile.wire import Peer

LOWEST = 19


async def attack(port: int, key: str, names: list[str]) -> dict[str, int]:
    peer = Peer("127.0.0.1", port, key)
    acts = [asyncio.ensure_future(BEHAVIOURS[name].act(peer)) for name in names]
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([over, *acts], return_when=asyncio.FIRST_COMPLETED)
    for act in acts:
        if act.done():
            act.result()  # broke off: it must not end unseen
        act.cancel()
    await asyncio.gather(*acts, return_exceptions=True)
    return dict(peer.answers)


def main() -> None:
    os.nice(LOWEST)
    port, key, *names = sys.argv[1:]
    print(json.dumps(asyncio.run(attack(int(port), key, names))), flush=True)
    os._exit(0)  # what still waits for standard input has nothing left to do


if __name__ == "__main__":
    main()
