"""The number format saved for a model on this machine, after several were measured.

`medusaq compile --for-this-machine` saves it; MEDUSAQ_WEIGHTS=for_this_machine loads it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from engine.base.errors import ModelLoadError
from engine.host.measurement_cache import identity, machine, read_entry, write_entry
from engine.llama.model import build

KIND = "choices"  # of file in the cache


@dataclass(frozen=True, slots=True)
class SavedFormat:
    """type: the format by name. file: the GGUF in it; None is the model's own.

    load: the load that it was chosen for. max_kl: the allowed divergence from the source, in nats a token.
    reason: a sentence for people.
    """

    type: str
    file: str | None
    load: str
    max_kl: float
    reason: str


def find_format(path: str) -> SavedFormat | None:
    """The saved format for this file, machine and build; None if there is none, or its file is gone."""
    kept = read_entry(KIND, _key(path))
    try:
        choice = kept and SavedFormat(**kept["choice"])
        return choice if choice and kept["stamp"] == _stamp(choice.file) else None
    except (KeyError, TypeError, ModelLoadError):
        return None


def save_format(path: str, choice: SavedFormat) -> None:
    """Save a format. Raises ModelLoadError if its file is missing, or the cache cannot be written."""
    content = {"choice": asdict(choice), "stamp": _stamp(choice.file)}
    write_entry(KIND, _key(path), content)
    if find_format(path) != choice:
        raise ModelLoadError(f"the choice for {path} cannot be kept: the cache folder cannot be written")


def require_format(path: str) -> SavedFormat:
    """The saved format. Raises ModelLoadError, which names the command that saves one."""
    choice = find_format(path)
    if choice is None:
        raise ModelLoadError(
            f"{path}: no number format was chosen for it on this machine; this command chooses: "
            f"medusaq compile {path} --for-this-machine"
        )
    return choice


def _key(path: str) -> str:
    return repr((identity(path), build(), machine()))


def _stamp(file: str | None) -> str | None:
    return identity(file) if file else None
