"""How an engine runs fastest on this machine: the number format of its weights, and when it drafts.

What is known from earlier starts is used at once. The rest is measured while no request runs, by a thread
that makes one decode call at a time, in contexts of its own; then the engine changes, and later starts know.
The first bulk requests wait for it. Under constant load measuring takes a share of the time, and bulk
requests wait once for the running ones to end: else a night's batch would run as slowly as it began.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from engine.base.config import EngineConfig
from engine.base.errors import EngineError, ModelLoadError
from engine.core.engine import Engine
from engine.host.idle_time import IdleTime, Stopped
from engine.llama.model import Model
from engine.speculative.latency_model import LatencyProfile
from engine.speculative.setup import Drafting
from engine.weights.format_selection import faster

MEASURED_FIRST_S = 15.0  # for which the first bulk requests wait at most; seven were measured on two cores
QUIET_S = 1.0  # before the weights change: prompts that are sent one after another meet the same ones
BUSY_S = 2.0  # of steps without a pause, after which measuring gets its share
BUSY_SHARE = 0.25  # of the time: some ten seconds of measuring, on two cores, are over within a minute
DRAIN_AFTER_S = 2.0  # of steps without a pause since something was found
DRAIN_S = 30.0  # of steps for which bulk requests wait at most, while the running ones end
DRAIN_AGAIN_S = 600.0  # of steps after a drain that was given up
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    """The weights to go on with, and T(n) with them; None where nothing drafts, or measuring failed."""

    model: Model
    profile: LatencyProfile | None


class Tuning:
    """Of one engine; all methods are for the thread that runs it.

    under_way: it is not known yet how it runs fastest.
    """

    def __init__(self, engine: Engine, config: EngineConfig, settled: bool, wake: Callable[[], None]) -> None:
        """settled: the format of the weights stays. wake: called when there is something to adopt, from
        another thread. Raises HeadsLoadError for heads named in the config.
        """
        self._engine, self._config, self._settled, self._wake = engine, config, settled, wake
        self._idle_time = IdleTime()
        self._found: _Found | None = None
        self._busy_s = self._lent_s = 0.0  # since the last pause
        self._drain_at_s = DRAIN_AFTER_S  # of busy time
        self._measured_first_until: float | None = None  # set by the first bulk request
        self._drafting: Drafting | None = None
        self.under_way = not settled
        if config.speculation and engine.model.can_share_prefixes:
            self._drafting = Drafting(engine.model, config)
            profile = self._drafting.cached(engine.model)
            self._drafting.start(engine, profile)
            self.under_way |= profile is None
        self._thread = threading.Thread(target=self._run, args=(engine.model,), name="tuning", daemon=True)
        if self.under_way:
            log.info("what is fastest on this machine is measured while no request runs")
            self._thread.start()

    def idle(self) -> AbstractContextManager[None]:
        """Measuring goes on in this block, and ends with it after the call under way."""
        self._busy_s = self._lent_s = 0.0
        self._drain_at_s = DRAIN_AFTER_S
        return self._idle_time.given()

    def stepped(self, seconds: float) -> None:
        """Note that a step took so long."""
        self._busy_s += seconds
        if self._found is None:
            self._drain_at_s = self._busy_s + DRAIN_AFTER_S
        elif self._busy_s > self._drain_at_s + DRAIN_S:
            self._drain_at_s = self._busy_s + DRAIN_AGAIN_S
        if self.under_way and self._lent_s < BUSY_SHARE * (self._busy_s - BUSY_S):
            began = time.perf_counter()
            self._idle_time.lend()
            self._lent_s += time.perf_counter() - began

    def holds_bulk(self) -> bool:
        """Whether bulk requests are to wait: the first ones, from the first call on, for what is measured;
        later ones until those that run have ended, DRAIN_S at most, to adopt() what was found.
        """
        if self._measured_first_until is None:
            self._measured_first_until = time.monotonic() + MEASURED_FIRST_S
        return self.first_s > 0 or (self._found is not None and self._busy_s >= self._drain_at_s)

    @property
    def first_s(self) -> float:
        """Seconds for which the first bulk requests wait at most from now on, for what is measured. 0 while
        other requests run: then little is.
        """
        if not self.under_way or self._busy_s > BUSY_S or self._measured_first_until is None:
            return 0.0
        return max(0.0, self._measured_first_until - time.monotonic())

    @property
    def found(self) -> bool:
        """Whether there is something to adopt()."""
        return self._found is not None

    @property
    def quiet_s(self) -> float | None:
        """Seconds without a request after which to adopt(); None: there is nothing to adopt."""
        if self._found is None:
            return None
        return 0.0 if self._found.model is self._engine.model else QUIET_S

    def adopt(self) -> None:
        """Go on as was found to be fastest, while nothing runs."""
        assert self._found, "found says so"
        found, self._found = self._found, None
        try:
            if found.model is not self._engine.model:
                self._engine.exchange_weights(found.model)
            if self._drafting and found.profile:
                self._drafting.start(self._engine, found.profile)
        except ModelLoadError as error:
            log.warning("weights stay as they are: %s", error.message)
        self.under_way = False

    def close(self) -> None:
        """Stop measuring after the call under way."""
        self._idle_time.close()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self, model: Model) -> None:
        try:
            self._found = self._measure(model)
        except Stopped:
            return
        except Exception:
            log.exception("what is fastest on this machine stays unknown")
            self._found = _Found(model, None)
        self._wake()

    def _measure(self, model: Model) -> _Found:
        piece = self._idle_time.piece
        if not self._settled:
            model = faster(model, self._config, piece)
        if self._drafting is None:
            return _Found(model, None)
        try:
            return _Found(model, self._drafting.measure(model, piece))
        except EngineError as error:
            log.warning("nothing is drafted unasked, since T(n) cannot be measured: %s", error.message)
            return _Found(model, None)
