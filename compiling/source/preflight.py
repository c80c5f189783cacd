"""Checks a hub's model before its weights are downloaded, so that most errors appear within seconds."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from compiling.base import resource_check
from compiling.base.errors import SourceError, UnknownError
from compiling.base.formats import least_bytes
from compiling.base.progress import Progress
from compiling.source import converter, hub
from compiling.source.checkpoint import INDEX, PICKLES, SAFETENSORS, check_tokenizer, read_settings
from compiling.source.staging import stage

WEIGHTS = (SAFETENSORS[1], PICKLES[1])


def check(
    name: str,
    sizes: Mapping[str, int],
    missing: int,
    *,
    folder: Path,
    progress: Progress,
    types: Sequence[str] | None,
) -> None:
    """sizes: bytes of each file. missing: bytes to download. types: as in source.prepare().

    Raises HubError, SourceError, ConverterError and RoomError.
    """
    weights = [file for file in sizes if file.endswith(WEIGHTS)]
    resource_check.make_folder(folder)
    _check_room(name, sum(sizes[file] for file in weights), missing, folder, types)
    settings = hub.fetch(name, [file for file in sizes if file not in weights] or ["config.json"])
    read_settings(settings)
    check_tokenizer(settings)
    _check_known(name, settings, folder, progress)


def _check_room(name: str, weights: int, missing: int, folder: Path, types: Sequence[str] | None) -> None:
    """Assumes weights of 32 bits, which gives the lowest need: the settings may state the format wrongly."""
    numbers = weights // resource_check.NUMBER_BYTES["f32"]
    wanted = resource_check.Conversion(
        name.rpartition("/")[2], numbers, "f32", follows=least_bytes(types, numbers)
    )
    same_disk = resource_check.existing(hub.cache()).stat().st_dev == folder.stat().st_dev
    resource_check.check_conversion(wanted, folder, fetched=missing if same_disk else 0)


def _check_known(name: str, settings: Path, folder: Path, progress: Progress) -> None:
    """Check that the converter supports architecture and tokenizer, by converting only the vocabulary.

    Other failures are only reported: some architectures read weights even for that.
    """
    found = converter.find(progress)
    work = folder / f"{name.rpartition('/')[2]}.look.part"
    shutil.rmtree(work, ignore_errors=True)
    try:
        staging = work / "checkpoint"
        stage(settings, staging, leave_out=(*WEIGHTS, INDEX))
        job = converter.Job(staging, name, work / "vocabulary.gguf", vocab_only=True)
        converter.run(found, [job], progress)
    except UnknownError:
        raise
    except SourceError as error:
        progress.say(f"{error}: will be tried again with its weights")
    finally:
        shutil.rmtree(work, ignore_errors=True)
