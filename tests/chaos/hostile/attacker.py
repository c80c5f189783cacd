"""The process of a hostile client: `python -m tests.chaos.hostile.attacker PORT KEY BEHAVIOUR...`.

Goes on until its standard input closes. Each second, and at the end, it prints a line of JSON: how many
answers of each class it has got.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from tests.chaos.hostile.behaviours import BEHAVIOURS
from tests.chaos.hostile.wire import Peer

TELL_S = 1.0


async def attack(port: int, key: str, names: list[str]) -> None:
    peer = Peer("127.0.0.1", port, key)
    acts = [asyncio.ensure_future(BEHAVIOURS[name].act(peer)) for name in names]
    acts.append(asyncio.ensure_future(tell(peer)))
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([over, *acts], return_when=asyncio.FIRST_COMPLETED)
    for act in acts:
        if act.done():
            act.result()  # broke off: it must not end unseen
        act.cancel()
    await asyncio.gather(*acts, return_exceptions=True)
    print(json.dumps(peer.answers), flush=True)


async def tell(peer: Peer) -> None:
    while True:
        await asyncio.sleep(TELL_S)
        print(json.dumps(peer.answers), flush=True)


def main() -> None:
    port, key, *names = sys.argv[1:]
    asyncio.run(attack(int(port), key, names))
    os._exit(0)  # what still waits for standard input has nothing left to do


if __name__ == "__main__":
    main()
