"""Walks through every state that the Lua scripts can reach, on a real server, with time as a step.

A state is all that is in a database of its own, and what the actors remember. A transition puts a state into
the server, runs one script and reads everything back, all within one script: thousands go in one trip.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import redis

from tasks.store.scripts import Argument, assemble, encode, read_sources

PREFIX = "x:"
CHANNEL = "x:events"
LIST = "queue"
SENT = "list medusaq."  # how the names of the lists begin to which scripts send messages
MS = 1000
TTL = 10**9  # ms; no record is dropped here
NEVER = 10**9  # ms
TERMINAL = ("succeeded", "failed", "cancelled", "expired")
MOST_STATES = 50_000
CLOCK = "clock"  # a key that holds the time in seconds instead of the server's own
TIME = ("local TIME = redis.call('TIME')", f"local TIME = {{ redis.call('GET', P .. '{CLOCK}'), 0 }}")
WRAPPED = """
local function script(KEYS, ARGV)
%s
end
local WRITE = { hash = 'HSET', zset = 'ZADD', list = 'RPUSH', set = 'SADD' }
local READ = {
  hash = function(key) return redis.call('HGETALL', key) end,
  zset = function(key)
    local pairs = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #pairs, 2 do pairs[i], pairs[i + 1] = pairs[i + 1], pairs[i] end
    return pairs
  end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  set = function(key) return redis.call('SMEMBERS', key) end,
}
local kinds, strings = {}, {}
for _, entry in ipairs(cjson.decode(ARGV[1])) do
  local key, kind, values = unpack(entry)
  kinds[key] = kind
  if kind == 'string' then
    table.insert(strings, key)
    table.insert(strings, values[1])
  else
    redis.call(WRITE[kind], key, unpack(values))
  end
end
if #strings > 0 then redis.call('MSET', unpack(strings)) end  -- each call costs more than what it does
local answer = script(KEYS, { unpack(ARGV, 2) })
local names, now, single = redis.call('KEYS', '*'), {}, {}
for _, key in ipairs(names) do
  local kind = kinds[key] or redis.call('TYPE', key).ok
  if kind == 'string' then
    table.insert(single, key)
  else
    table.insert(now, { key, kind, READ[kind](key) })
  end
end
if #single > 0 then
  for i, value in ipairs(redis.call('MGET', unpack(single))) do
    table.insert(now, { single[i], 'string', { value } })
  end
end
if #names > 0 then redis.call('DEL', unpack(names)) end
return { cjson.encode(answer == nil and cjson.null or answer), cjson.encode(now) }
"""

Keys = dict[str, Any]  # without the prefix: a hash as dict, a sorted set as dict of scores, and so on
Call = tuple[str, str, tuple[str | int, ...]]  # the SHA of a script, the keys before it, its arguments
S = TypeVar("S")
V = TypeVar("V")


class Broken(AssertionError):
    """An invariant does not hold, or a state has no way out."""


class Read(dict[str, Any]):
    """Keys as they were read from the server, and the text that puts them there again.

    sent: the Celery list of each message that the script has sent, which is not kept among the keys;
    sent_ids: what they name.
    """

    text: str
    sent: tuple[str, ...] = ()
    sent_ids: tuple[str, ...] = ()
    views: dict[Any, Any]


def view_of(keys: Keys, make: Callable[[Keys], V], name: Hashable = None) -> V:
    """make(keys), made once for keys that are the same object wherever they are equal.

    name: by which it is known, instead of make.
    """
    if not isinstance(keys, Read):
        return make(keys)
    found: V | None = keys.views.get(name or make)
    if found is None:
        found = keys.views[name or make] = make(keys)
    return found


def sent_by(keys: Keys) -> tuple[str, ...]:
    """The lists of the messages that the script before has sent."""
    return keys.sent if isinstance(keys, Read) else ()


def ids_sent_by(keys: Keys) -> tuple[str, ...]:
    """What the messages name that the script before has sent."""
    return keys.sent_ids if isinstance(keys, Read) else ()


class Known:
    """What scripts have answered so far, each by its own text, so that servers with other mutations share it.

    Whatever a script depends on is in the keys, the time too, so that an answer stays what it is.
    """

    def __init__(self) -> None:
        self.answers: dict[Call, tuple[Any, Read]] = {}
        self._read: dict[str, Read] = {}  # by what the server said: it says the same in several orders
        self._distinct: dict[str, Read] = {}

    def add(self, call: Call, reply: tuple[str, str]) -> None:
        answer, said = reply
        if said not in self._read:
            whole = _keys(said)
            keys = _read({name: value for name, value in whole.items() if not name.startswith(SENT)})
            sent = [
                (name.removeprefix("list "), json.loads(text)["headers"]["id"])
                for name, texts in sorted(whole.items())
                if name.startswith(SENT)
                for text in texts
            ]
            keys.sent, keys.sent_ids = tuple(name for name, _ in sent), tuple(each for _, each in sent)
            self._read[said] = self._distinct.setdefault(f"{keys.text}{sent}", keys)
        self.answers[call] = json.loads(answer), self._read[said]

    def interned(self, keys: Keys) -> Read:
        """The same object for equal keys, by which no message was sent."""
        read = _read(keys)
        return self._distinct.setdefault(f"{read.text}[]", read)


class Server:
    """Runs single scripts on given keys.

    mutations: script or library -> text in it and what stands there instead.
    """

    def __init__(
        self,
        client: redis.Redis,
        mutations: Mapping[str, tuple[str, str]] | None = None,
        known: Known | None = None,
    ) -> None:
        self._client = client
        self._known = known or Known()
        sources = read_sources()
        for name, change in ({**(mutations or {}), "lib/base": TIME}).items():
            sources[name] = _replaced(sources[name], *change)
        self._shas = {
            name: str(client.script_load(WRAPPED % text)) for name, text in assemble(sources).items()
        }

    def interned(self, keys: Keys) -> Read:
        """Keys that no script has made, as if one had."""
        return self._known.interned(keys)

    def run(self, calls: Iterable[tuple[Keys, str, Sequence[Argument]]]) -> list[tuple[Any, Keys]]:
        """The answer of each script, and all keys after it; equal calls are made once.

        Many are equal: states often differ in what the actors remember alone.
        """
        texts: dict[int, str] = {}  # by identity, since all steps of a state begin with the same keys
        wanted: list[Call] = []
        for keys, name, arguments in calls:
            text = texts.get(id(keys))
            if text is None:
                text = texts[id(keys)] = keys.text if isinstance(keys, Read) else _text(keys)
            wanted.append((self._shas[name], text, tuple(map(encode, arguments))))
        answers = self._known.answers
        missing = [call for call in dict.fromkeys(wanted) if call not in answers]
        with self._client.pipeline(transaction=False) as pipe:
            for sha, text, given in missing:
                pipe.evalsha(sha, 2, PREFIX, CHANNEL, text, *given)
            for call, reply in zip(missing, pipe.execute(), strict=True):
                self._known.add(call, reply)
        return [answers[call] for call in wanted]


class Step(NamedTuple, Generic[S]):
    """What may happen in a state: a script, and the state that its answer and the keys after it make.

    script None: nothing but the actors' memory, or the keys as given, changes. own: the system does it by
    itself, when nothing fails: such steps must lead out of every state. keys: on which the script runs, if
    not on those of the state.
    """

    name: str
    then: Callable[[Any, Keys], S]
    script: str | None = None
    arguments: Sequence[Argument] = ()
    own: bool = True
    keys: Keys | None = None


@dataclass
class Explored:
    """Numbers of states and transitions, and which states have ended."""

    states: int = 0
    transitions: int = 0
    ended: int = 0
    names: set[str] = field(default_factory=set)


class Model(Generic[S]):
    """What is explored. Override all of it."""

    def start(self) -> S:
        raise NotImplementedError

    def keys(self, state: S) -> Keys:
        raise NotImplementedError

    def steps(self, state: S) -> list[Step[S]]:
        raise NotImplementedError

    def essence(self, state: S) -> Hashable:
        """Equal for states that behave alike."""
        raise NotImplementedError

    def check(self, before: S, step: Step[S], answer: Any, after: S) -> None:
        """Raises AssertionError."""
        raise NotImplementedError

    def ended(self, state: S) -> bool:
        raise NotImplementedError


def explore(server: Server, model: Model[S], most: int) -> Explored:
    """Every state there is; raises Broken, also where there are more than `most` states."""
    with _without_gc():
        return _explore(server, model, most)


def _explore(server: Server, model: Model[S], most: int) -> Explored:
    first = model.start()
    seen: dict[Hashable, int] = {model.essence(first): 0}
    ended, ways = [model.ended(first)], [()]  # type: tuple[list[bool], list[tuple[str, ...]]]
    own: list[list[int]] = [[]]
    found = Explored()
    frontier = {0: first}
    while frontier:
        todo = [(index, before, step) for index, before in frontier.items() for step in model.steps(before)]
        calls = [
            (step.keys or model.keys(before), step.script, step.arguments)
            for _, before, step in todo
            if step.script
        ]
        answers = iter(server.run(calls))
        frontier = {}
        for index, before, step in todo:
            answer, keys = next(answers) if step.script else (None, model.keys(before))
            found.transitions += 1
            found.names.add(step.name)
            try:
                after = step.then(answer, keys)
                model.check(before, step, answer, after)
            except AssertionError as error:
                raise Broken(f"{error}, after {' > '.join((*ways[index], step.name))}") from None
            essence = model.essence(after)
            if essence not in seen:
                seen[essence] = len(ended)
                frontier[len(ended)] = after
                ended.append(model.ended(after))
                ways.append((*ways[index], step.name))
                own.append([])
            if step.own:
                own[index].append(seen[essence])
        if len(ended) > most:
            raise Broken(f"more than {most} states")
    found.states, found.ended = len(ended), sum(ended)
    _check_ways_out(ended, ways, own)
    return found


@contextmanager
def _without_gc() -> Iterator[None]:
    """It would look at all states again and again, which are no garbage and make no cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _check_ways_out(
    ended: Sequence[bool], ways: Sequence[tuple[str, ...]], own: Sequence[Sequence[int]]
) -> None:
    into: dict[int, list[int]] = {}
    for index, targets in enumerate(own):
        for target in targets:
            into.setdefault(target, []).append(index)
    escapes = {index for index, over in enumerate(ended) if over}
    todo = list(escapes)
    while todo:
        for index in into.get(todo.pop(), ()):
            if index not in escapes:
                escapes.add(index)
                todo.append(index)
    for index in range(len(ended)):
        if index not in escapes:
            raise Broken(f"stuck for ever, after {' > '.join(ways[index])}")


def missed(keys: Keys, holders: Iterable[str], then: Callable[[Any, Keys], S]) -> list[Step[S]]:
    """Of each holder of leases: its connections are gone, and its leases end; or it had a beat since."""
    return [
        Step(
            f"{holder} is missed{more}",
            then,
            "queues/expire_leases",
            (holder, 1),
            own=False,
            keys=_with_holder(keys, holder, beats),
        )
        for holder in sorted(set(holders))
        for more, beats in (("", "1"), (", and beats", "2"))
    ]


def _with_holder(keys: Keys, holder: str, beats: str) -> Keys:
    def make(keys: Keys) -> Keys:
        return _read({**keys, "hash holders": {holder: beats}})

    return view_of(keys, make, (holder, beats))


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def _text(keys: Keys) -> str:
    """The same for the same keys."""
    flat: list[tuple[str, str, list[Any]]] = []
    for key, value in sorted(keys.items()):
        kind, name = key.split(" ", 1)
        values = value
        if kind == "hash":
            values = [text for pair in sorted(value.items()) for text in pair]
        elif kind == "zset":
            values = [text for member, score in sorted(value.items()) for text in (score, member)]
        elif kind == "string":
            values = [value]
        flat.append((PREFIX + name, kind, values))
    return json.dumps(flat)


def _read(keys: Keys) -> Read:
    read = Read(keys)
    read.text, read.views = _text(read), {}
    return read


def _keys(text: str) -> Keys:
    """Keys are named "kind name", as "hash job:a"."""
    keys: Keys = {}
    for name, kind, values in json.loads(text):
        key = f"{kind} {name.removeprefix(PREFIX)}"
        if kind == "hash":
            keys[key] = dict(zip(values[::2], values[1::2], strict=True))
        elif kind == "zset":
            keys[key] = dict(zip(values[1::2], values[::2], strict=True))
        elif kind == "string":
            keys[key] = values[0]
        else:
            keys[key] = sorted(values) if kind == "set" else values
    return keys
