"""Compiles the kernels, once for each environment: `python -m engine.kernels`.

The library lies beside llama.cpp's, or in the cache folder where that is not writable. It holds a variant for
each set of instructions, and so runs on every processor of its kind.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from common.llama_build import cache_folder, library_folder

SOURCES = Path(__file__).parent
GGML = "0.25.3"  # whose interface ggml_interface.h describes
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wno-maybe-uninitialized"),
    "-ffp-contract=off",  # or a row would be rounded otherwise beside others
)
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
FILES = {  # with the instructions that each may use
    "backend/backend.cpp": (),
    "backend/operations.cpp": (),
    "backend/packed_weights.cpp": (),
    "backend/row_operations.cpp": (),
    "backend/team.cpp": (),
    "products/pack.cpp": (),
    "products/avx2.cpp": AVX2,
    "products/avx512.cpp": (*AVX512, "-mavx512vnni"),
    "attention/avx2.cpp": AVX2,
    "attention/avx512.cpp": AVX512,
    "rows/avx2.cpp": AVX2,
    "rows/avx512.cpp": AVX512,
}
PROCESSORS = ("x86_64", "AMD64")
LONGEST_S = 300.0


class KernelsMissing(Exception):
    """There is no library, and none can be made; the text says why, in one line."""


def library() -> Path:
    """The library for this environment's llama.cpp, compiled now if it is missing. Raises KernelsMissing."""
    if platform.machine() not in PROCESSORS:
        raise KernelsMissing(f"there are none for {platform.machine()}")
    libraries = library_folder()
    found = [path.name.partition(".so.")[2] for path in libraries.glob("libggml-base.so.*.*.*")]
    if found != [GGML]:
        raise KernelsMissing(f"they are for ggml {GGML}, and {libraries} has {found[0] if found else 'none'}")
    name = f"libmedusaq-kernels-{_digest()}.so"
    folders = (libraries, cache_folder() / "kernels")
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".kernels-", dir=folder) as scratch:
                compile_library(made := Path(scratch) / name, libraries)
                return made.replace(folder / name)
    raise KernelsMissing(f"neither {folders[0]} nor {folders[1]} can be written")


def compile_library(target: Path, libraries: Path, flags: Sequence[str] = ()) -> None:
    """Compile and link it. flags: further ones, for the compiler. Raises KernelsMissing."""
    headers = Path(sysconfig.get_path("platlib")) / "include"
    if not (headers / "ggml-backend.h").is_file():
        raise KernelsMissing(f"the headers of ggml are not in {headers}")
    with (
        tempfile.TemporaryDirectory(prefix="medusaq-kernels-") as folder,
        ThreadPoolExecutor() as pool,
    ):
        objects = {file: str(Path(folder) / f"{file.replace('/', '-')}.o") for file in FILES}
        common = (*FLAGS, *flags, f"-I{headers}")
        commands = [
            (*common, *FILES[file], "-c", str(SOURCES / file), "-o", made) for file, made in objects.items()
        ]
        list(pool.map(_run, commands))
        _run((*flags, "-shared", "-fopenmp", *objects.values(), "-o", str(target), *_linked(libraries)))


def _linked(libraries: Path) -> tuple[str, str]:
    """By its name alone: at run time it is the library that llama.cpp has loaded."""
    return f"-L{libraries}", "-l:libggml-base.so.0"


def _run(arguments: Sequence[str]) -> None:
    compiler = os.environ.get("CXX", "c++")
    try:
        subprocess.run((compiler, *arguments), check=True, capture_output=True, text=True, timeout=LONGEST_S)
    except OSError:
        raise KernelsMissing(f"no C++ compiler ({compiler}) is here to make them") from None
    except subprocess.TimeoutExpired:
        raise KernelsMissing(f"{compiler} takes more than {LONGEST_S:.0f} s for them") from None
    except subprocess.CalledProcessError as error:
        said = [line.strip() for line in error.stderr.splitlines() if "error" in line]
        why = said[0] if said else f"exit code {error.returncode}"
        raise KernelsMissing(f"{compiler} cannot compile them: {why}") from None


def _digest() -> str:
    """Of the sources and of how they are compiled."""
    parts = [repr((FLAGS, FILES, GGML)).encode()]
    parts += [path.read_bytes() for path in sorted(SOURCES.rglob("*")) if path.suffix in (".cpp", ".h")]
    return sha256(b"".join(parts)).hexdigest()[:12]
