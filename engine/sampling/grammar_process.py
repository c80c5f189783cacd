"""Compile grammars; as a program: compile them on trial, each in a process of its own, under hard limits.

The program is started by its path, since the package `engine` would load llama.cpp. It builds the tokenizer
once and then forks for each trial, so that a trial costs a few milliseconds and can be killed at any time.
It reads the vocabulary from standard input (see write_vocabulary()) and takes one socket for each trial from
the socket whose number is its argument. Through the trial's socket come STARTED, then, after a HEADER and
the grammar from the other side, the error text of llguidance (empty: none) after ANSWER. A socket that closes
without an answer means that a limit killed the trial. The program and its trials end when the other side
closes their sockets, so with the process that started them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

STACK_BYTES = 256 << 20  # for the recursion of the compiler: a schema of 256 KiB may need 60 MiB
TRIAL_STACK_BYTES = 128 << 20  # less, so that no grammar that passes a trial overflows the stack after it
LONG_NICENESS = 5  # of threads that compile what takes long: the engine keeps most of each core
STARTED, ANSWER = b"s", b"a"
HEADER = struct.Struct("!dQQ?")  # CPU seconds, heap bytes, bytes of the grammar, whether it takes long
# Where only one text may come, any tokens may write it: not every vocabulary gives back what it tokenized.
NOT_FORCED = '%llguidance {"no_forcing": true}'
LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,  # some 5 ms for one token of one request, where ordinary schemas take 0.1
    max_lexer_states=50_000,  # some 0.3 kB each, 14 MB for one request
    verbose_errors=False,  # they repeat the schema
)


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """What the tokens of a vocabulary write. special: no part of an answer. ends: of a generation."""

    tokens: list[bytes]
    special: list[int]
    ends: list[int]


class _Wrapped:
    """With the names that llguidance's TokenizerWrapper looks for."""

    bos_token_id = None

    def __init__(self, texts: TokenTexts) -> None:
        self.tokens = texts.tokens
        self.special_token_ids = texts.special
        self.eos_token_id = texts.ends[0] if texts.ends else None

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("nothing is tokenized where nothing is forced")


def new_tokenizer(texts: TokenTexts) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Wrapped(texts)), eos_token=texts.ends or None)


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher, whose is_error() says whether it can be used. Needs a stack of STACK_BYTES."""
    matcher = LLMatcher(tokenizer, f"{NOT_FORCED}\n{grammar}", log_level=0, limits=LIMITS)
    matcher.compute_bitmask()  # an error where not even one token may come
    return matcher


def looking_ahead(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """The same for compute_ff_bytes(), which needs a matcher of its own: it uses up the limits of one."""
    return LLMatcher(tokenizer, f"{NOT_FORCED}\n{grammar}", log_level=0, limits=LIMITS)


def start_thread(target: Callable[[], None], stack_bytes: int) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    with _stack_size_is_global:
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


_stack_size_is_global = threading.Lock()


def lower_priority() -> None:
    """Of this thread alone, on Linux; elsewhere of none, since it would be that of the whole process."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LONG_NICENESS)


def write_vocabulary(out: IO[bytes], texts: TokenTexts) -> None:
    head = {"lengths": [len(token) for token in texts.tokens], "special": texts.special, "ends": texts.ends}
    out.write(json.dumps(head).encode() + b"\n" + b"".join(texts.tokens))


def _read_vocabulary(source: IO[bytes]) -> TokenTexts:
    head = json.loads(source.readline())
    return TokenTexts([source.read(length) for length in head["lengths"]], head["special"], head["ends"])


def _serve(control: socket.socket, tokenizer: LLTokenizer) -> None:
    """Fork for each socket that comes, until there is nobody to send one."""
    while True:
        _, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not sockets:
            return
        [number] = sockets
        if os.fork() == 0:
            try:
                control.close()
                _try(socket.socket(fileno=number), tokenizer)
            finally:
                os._exit(1)
        os.close(number)


def _try(connection: socket.socket, tokenizer: LLTokenizer) -> None:
    connection.sendall(STARTED)
    with connection.makefile("rb") as incoming:
        cpu_s, heap_bytes, length, long = HEADER.unpack(incoming.read(HEADER.size))
        grammar = incoming.read(length).decode()

    def run() -> None:
        try:
            if long:
                lower_priority()
            matcher = compiled(tokenizer, grammar)
            connection.sendall(ANSWER + matcher.get_error().encode())
        finally:
            os._exit(0)

    _limit(cpu_s, heap_bytes)
    start_thread(run, TRIAL_STACK_BYTES)
    connection.recv(1)  # returns when the other side has closed the socket


def _limit(cpu_s: float, heap_bytes: int) -> None:
    """Kill this process after so much CPU time; let no memory be had beyond the heap and the stack."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    whole_s = math.ceil(cpu_s) + 1  # this process is new: it has used none
    resource.setrlimit(resource.RLIMIT_CPU, (whole_s, whole_s))
    with contextlib.suppress(OSError, ValueError):  # not on every system: there the time limit bounds it
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + TRIAL_STACK_BYTES + heap_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):  # they strike the parent too, which ends this process
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # trials that ended leave nothing behind
    control = socket.socket(fileno=int(sys.argv[1]))
    tokenizer = new_tokenizer(_read_vocabulary(sys.stdin.buffer))
    gc.freeze()  # memory that is shared with the trials stays so
    _serve(control, tokenizer)


if __name__ == "__main__":
    main()
