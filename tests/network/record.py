"""A network of its own that leads nowhere, and a record of what is asked of it: Linux, as root.

Run by `unshare --net --mount`, with a file that takes the place of /etc/resolv.conf. Each name that is looked
up and each packet that would leave becomes a line on stdout; names are unknown, and packets are dropped.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

OUTER, PEER = "out0", "out1"  # two ends of a cable: what leaves by one is heard on the other
SETUP = f"""
set -e
ip link set lo up
ip link add {OUTER} type veth peer name {PEER}
ip link set {OUTER} up
ip link set {PEER} up
ip address add 192.0.2.1/24 dev {OUTER}
ip address add 2001:db8::1/64 dev {OUTER} nodad
ip route add default via 192.0.2.2
ip -6 route add default via 2001:db8::2 dev {OUTER}
ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:01 dev {OUTER}
ip neighbour add 2001:db8::2 lladdr 02:00:00:00:00:01 dev {OUTER}
mount --bind "$1" /etc/resolv.conf
"""
TRANSPORTS = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}  # the kernel's own ICMPv6 is not ours
ALL_FRAMES, IPV4, IPV6 = 3, 0x0800, 0x86DD  # linux/if_ether.h
NXDOMAIN = b"\x81\x83"


def main() -> None:
    resolver = Path(sys.argv[1])
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", encoding="utf-8")
    done = subprocess.run(["sh", "-c", SETUP, "sh", str(resolver)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr.strip() or "no network of its own can be made")
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 53))
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
    frames.bind((PEER, ALL_FRAMES))
    threading.Thread(target=_hear_frames, args=(frames,), daemon=True).start()
    _record("ready")
    while True:
        query, sender = names.recvfrom(4096)
        name, end = _name_of(query)
        _record(f"name {name}")
        names.sendto(query[:2] + NXDOMAIN + query[4:6] + bytes(6) + query[12 : end + 4], sender)


def _record(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())  # in one call: print() mixes lines of two threads


def _name_of(query: bytes) -> tuple[str, int]:
    """The name that a DNS query is for, and where it ends."""
    at, labels = 12, []
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += length + 1
    return ".".join(labels), at + 1


def _hear_frames(frames: socket.socket) -> None:
    while True:
        packet = frames.recv(65536)
        [kind], packet = struct.unpack("!H", packet[12:14]), packet[14:]
        if kind == IPV4:
            protocol, target, rest = packet[9], packet[16:20], packet[4 * (packet[0] & 15) :]
        elif kind == IPV6:
            protocol, target, rest = packet[6], packet[24:40], packet[40:]
        else:
            continue
        if protocol in TRANSPORTS:
            [port] = struct.unpack("!H", rest[2:4])
            _record(f"packet {TRANSPORTS[protocol]} {ipaddress.ip_address(target)} {port}")


if __name__ == "__main__":
    main()
