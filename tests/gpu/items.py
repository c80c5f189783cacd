"""What is tried: selections of the tests that every machine runs, and measurements."""

from __future__ import annotations

from dataclasses import dataclass

ENGINE = "tests/engine"
MEASURED = "measured: "  # before each line that a measurement prints


@dataclass(frozen=True, slots=True)
class Selection:
    """Tests of tests/engine. select: as of `pytest -k`. large: of the packaged model, not of a tiny one."""

    what: str
    paths: tuple[str, ...]
    select: str = ""
    large: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """A function of tests/gpu/measures, which runs in a process of its own."""

    what: str
    large: bool = False


Item = Selection | Measure


def _selection(what: str, *paths: str, select: str = "", large: bool = False) -> Selection:
    return Selection(what, tuple(f"{ENGINE}/{path}" for path in paths), select, large)


DEFAULT = " or ".join(
    ("default_model", "to_the_bit", "schema_is_drafted", "models_own_end", "trained_heads", "sure_and_wrong")
)
SPEED = "speed"
ITEMS: dict[str, Item] = {
    SPEED: Measure("tokens/s of the packaged model"),
    "devices": _selection("the devices are found and named", "base/test_devices.py"),
    "calls": _selection(
        "decode calls: outputs, sharing, trees, a full cache",
        "base/test_context.py",
        select="not saved and not copied and not another_kind and not hidden_states",
    ),
    "hidden": _selection("hidden states are read from it", "base/test_context.py", select="hidden_states"),
    "states": _selection(
        "state blobs: cells go on elsewhere, also in another layout",
        "base/test_context.py",
        select="saved or copied or another_kind",
    ),
    "layouts": _selection("both KV layouts, and moves between them", "core/test_layout_setup.py"),
    "life": _selection(
        "requests join, leave, fail and share prefixes",
        "core/test_engine.py",
        "core/test_recurrent.py",
        select=f"not ({DEFAULT})",
    ),
    "f32": _selection(
        "the same answers whatever shares a batch, and with drafts: 32-bit weights and cache",
        "core/exactness/test_f32.py",
    ),
    "constrained": _selection(
        "answers held to a grammar, alone and with drafts",
        "core/exactness/test_constrained.py",
        "core/exactness/test_constrained_drafts.py",
        select=f"not ({DEFAULT})",
    ),
    "heads": _selection(
        "drafts of heads, from hidden states of the device",
        "medusa/test_lossless_heads.py",
        select="f32",
    ),
    "tuning": _selection(
        "T(n) is measured while idle",
        "speculative/tuning/test_tuning.py",
        select="constant_load or nothing_is_drafted",  # the others change the format, as no GPU does
    ),
    "bits": _selection(
        "the packaged model, batch-invariant: equal to the bit",
        "core/exactness/test_to_the_bit.py",
        "core/exactness/test_constrained_drafts.py",
        "medusa/test_lossless_heads.py",
        select=DEFAULT,
        large=True,
    ),
    "exact-f32": Measure("which results stay the same: 32-bit weights and cache"),
    "exact-f16": Measure("which results stay the same: 32-bit weights, F16 cache"),
    "exact-invariant": Measure("which results stay the same: 32-bit weights, F16 cache, batch-invariant"),
    "exact-packaged": Measure("which results of the packaged model stay the same", large=True),
    "exact-packaged-invariant": Measure(
        "which results of the packaged model stay the same, batch-invariant", large=True
    ),
    "curve": Measure("T(n), and what the policy makes of it"),
    "workers": Measure("two workers on one device"),
    "memory": Measure("a device that runs out of memory"),
}
