"""What to install, where something is missing."""

from __future__ import annotations

import os
import shutil

PREBUILT = "https://abetlen.github.io/llama-cpp-python/whl/cpu"
# What the engine imports, so that a base install lacks it.
OF_WORKER = {"llama_cpp", "llguidance", "numpy", "psutil"}
COMPILERS = ("c++", "g++", "clang++")


def to_install(extras: str) -> str:
    """The command. Where llama.cpp cannot be compiled, it names the index of those that are."""
    command = f"pip install 'medusaq[{extras}]'"
    if "worker" not in extras.split(",") or has_compiler():
        return command
    return f"{command} --extra-index-url {PREBUILT} (prebuilt, as there is no C++ compiler here)"


def has_compiler() -> bool:
    """Of C++."""
    named = [os.environ["CXX"].split()[0]] if os.environ.get("CXX", "").split() else []
    return any(shutil.which(name) for name in (*named, *COMPILERS))
