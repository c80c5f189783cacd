"""A slow link between two network interfaces: `python link.py ONE OTHER DELAY_S LOSS`, until it is killed.

Every frame that comes in at one of them leaves at the other one so much later, or not at all. In place of the
kernel's netem, which not every kernel has. Only the standard library.
"""

from __future__ import annotations

import random
import select
import socket
import sys
import time
from collections import deque

ETH_P_ALL = 3  # linux/if_ether.h
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/socket.h, linux/if_packet.h
SO_RCVBUFFORCE = 33
BUFFER_BYTES = 32 * 1024 * 1024
MOST_BYTES = 70_000  # of a frame: up to 64 KiB that are not cut into packets yet, and the headers
AT_ONCE = 64  # frames of one side, before those that are due


def opened(interface: str) -> socket.socket:
    """All frames that come in. Each begins with a header that keeps what is left to do: checksum, cutting."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    made.bind((interface, ETH_P_ALL))
    made.setblocking(False)
    return made


def forward(one: socket.socket, other: socket.socket, delay_s: float, loss: float) -> None:
    """Never returns."""
    sinks = {one: other, other: one}
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for source in select.select([one, other], [], [], pause)[0]:
            due = time.monotonic() + delay_s
            for _ in range(AT_ONCE):
                try:
                    frame = source.recv(MOST_BYTES)
                except BlockingIOError:
                    break
                if random.random() >= loss:
                    waiting.append((due, sinks[source], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, sink, frame = waiting.popleft()
            try:
                sink.send(frame)
            except OSError:  # the queue of the interface is full, or it is down: one more that is lost
                continue


if __name__ == "__main__":
    first, second, delay, share = sys.argv[1:]
    ends = opened(first), opened(second)
    print("ready", flush=True)
    forward(*ends, float(delay), float(share))
