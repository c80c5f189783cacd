"""What our kernels gain on this machine, beside llama.cpp's: `python -m engine.tools.kernel_gain`."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import asdict

from engine.base.config import EngineConfig
from engine.host.measurement_cache import machine, read_measurement, write_measurement
from engine.host.other_load import OtherLoad
from engine.llama.kernels import enable_kernels, load_kernels
from engine.llama.model import Model, build, default_model_path
from engine.weights.format_selection import Timing, time_formats

NAME = "kernels"


def gain(config: EngineConfig) -> tuple[Timing, Timing]:
    """Times with the kernels and without, of the packaged model; measured once for each machine and build."""
    key = repr((build(), machine(), config.slots))
    with suppress(KeyError, TypeError):
        if kept := read_measurement(NAME, key):
            return Timing(**kept["ours"]), Timing(**kept["theirs"])
    load = OtherLoad()
    path = default_model_path()
    models = [Model(path)]
    try:
        enable_kernels(False)
        models.append(Model(path))
    finally:
        enable_kernels(True)
    ours, theirs = time_formats(models, config)
    write_measurement(NAME, key, {"ours": asdict(ours), "theirs": asdict(theirs)}, load.share())
    return ours, theirs


def main() -> int:
    """One line on what computes here; 1 if there are no kernels."""
    found = load_kernels()
    if found.missing:
        print(found.missing)
        return 1
    config = EngineConfig(slots=16)
    ours, theirs = gain(config)
    one, many = theirs.alone / ours.alone, theirs.together / ours.together
    prompt = theirs.prompt_token / ours.prompt_token
    print(
        f"{found.variant}: beside llama.cpp's own, with the packaged model, one request is decoded {one:.1f} "
        f"times as fast, {config.slots} are {many:.1f} times, a prompt is read {prompt:.1f} times as fast"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
