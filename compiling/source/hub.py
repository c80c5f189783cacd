"""Fetches models by name from a hub, through huggingface_hub (HF_ENDPOINT, HF_TOKEN, HF_HOME)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

import engine  # noqa: F401  disables the telemetry of the hub's client, before that is imported
from common.units import size
from compiling.base.errors import HubError, RoomError
from compiling.base.resource_check import existing

NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # neither ./ nor ../
AWAY, BROKEN_OFF = "the hub cannot be reached", "the download broke off, repeat to go on"
MISSING = "models by name need huggingface_hub: pip install 'medusaq[local]'"


def looks_like_a_name(source: str) -> bool:
    """Whether it has the form organisation/repository."""
    return NAME.fullmatch(source) is not None


def fetch(name: str, patterns: Sequence[str]) -> Path:
    """A folder of the hub's cache with these files of a repository; only missing files are fetched.

    patterns: of shells, such as "*.json". Raises HubError.
    """
    with _errors_of(name, BROKEN_OFF):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=list(patterns)))


Check = Callable[[Mapping[str, int], int], None]


def choose(name: str, pick: Callable[[Sequence[str]], list[str]], check: Check | None = None) -> Path:
    """Fetch the files that `pick` selects; return a cached copy if the hub gives no list of files.

    check: called before the download with the sizes of these files and the size still missing, in bytes; it
    may raise. Raises HubError, and RoomError if the disk is too small.
    """
    try:
        sizes = list_files(name)
    except HubError:
        kept = _kept(name)
        if kept is None:
            raise
        return kept
    files = pick(list(sizes))
    missing = sum(sizes[file] for file in files if not _is_kept(name, file))
    missing = max(0, missing - _half_fetched(name))
    _check_disk(name, missing)
    if check is not None and missing:
        check({file: sizes[file] for file in files}, missing)
    return fetch(name, files)


def list_files(name: str) -> dict[str, int]:
    """The files of a repository and their sizes in bytes. Raises HubError."""
    with _errors_of(name, AWAY):
        from huggingface_hub import HfApi

        siblings = HfApi().model_info(name, files_metadata=True).siblings or []
        return {file.rfilename: file.size or 0 for file in siblings}


def _kept(name: str) -> Path | None:
    with suppress(HubError), _errors_of(name, AWAY):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, local_files_only=True))
    return None


def cache() -> Path:
    """The folder to which files are fetched; it need not exist."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _is_kept(name: str, file: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, file), str)


def _half_fetched(name: str) -> int:
    """Bytes of interrupted downloads."""
    from huggingface_hub.file_download import repo_folder_name

    blobs = cache() / repo_folder_name(repo_id=name, repo_type="model") / "blobs"
    return sum(part.stat().st_size for part in blobs.glob("*.incomplete"))


def _check_disk(name: str, needed: int) -> None:
    free = shutil.disk_usage(existing(cache())).free
    if needed > free:
        raise RoomError(
            f"{name}: {size(needed)} of disk are needed in {cache()}, {size(free)} are free; "
            "HF_HOME names another folder"
        )


@contextmanager
def _errors_of(name: str, failure: str) -> Iterator[None]:
    """Convert errors of huggingface_hub to HubError. failure: the message for network and disk errors."""
    try:
        from huggingface_hub import errors
    except ImportError as error:
        raise HubError(MISSING) from error
    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(
            f"{name}: gated: accept its terms on the hub's page, then set HF_TOKEN to a token of that account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{name}: no such repository on the hub, or a private one (HF_TOKEN names the account)"
        ) from error
    except errors.HFValidationError as error:
        raise HubError(f"{name}: not a name of the hub, which are as organisation/repository") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise HubError(f"{name}: the hub cannot be reached, and there is no cached copy") from error
    except errors.HfHubHTTPError as error:
        raise HubError(f"{name}: the hub answered: {next(iter(str(error).splitlines()), '')}") from error
    except (OSError, httpx.HTTPError) as error:
        raise HubError(f"{name}: {failure}: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """The message of the root cause, which the other errors only wrap."""
    while deeper := error.__cause__ or error.__context__:
        error = deeper
    return next(iter(str(error).splitlines()), "") or type(error).__name__
