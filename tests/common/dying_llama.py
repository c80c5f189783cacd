"""A llama.cpp that dies: the real one behind a library whose calls raise SIGILL where a test says so.

STUB_DIES: `always`, `buffers` (with buffers of extra kinds), `rows` (from 8 rows on), `load` (as soon
as the library is loaded); anything else never.
"""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

VARIABLE = "STUB_DIES"
SOURCE = r"""
#include "llama.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static bool extra_buffers = false;

static bool dies(const char * when) {
    const char * said = getenv("STUB_DIES");
    return said && !strcmp(said, when);
}

__attribute__((constructor)) static void load(void) {
    if (dies("load")) raise(SIGILL);
}

struct llama_model * llama_model_load_from_file(const char * path, struct llama_model_params params) {
    extra_buffers = params.use_extra_bufts;
    struct llama_model * (*real)(const char *, struct llama_model_params) = dlsym(RTLD_NEXT, __func__);
    return real(path, params);
}

int32_t llama_decode(struct llama_context * context, struct llama_batch batch) {
    if (dies("always") || (dies("buffers") && extra_buffers) || (dies("rows") && batch.n_tokens >= 8))
        raise(SIGILL);
    int32_t (*real)(struct llama_context *, struct llama_batch) = dlsym(RTLD_NEXT, __func__);
    return real(context, batch);
}
"""


def libraries() -> Path:
    """The folder of the installed llama.cpp's libraries."""
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "lib"


def build(folder: Path) -> Path:
    """A folder to load llama.cpp from."""
    real, source = libraries(), folder / "stub.c"
    source.write_text(SOURCE)
    for library in real.glob("lib*"):
        if not library.name.startswith("libllama.so"):
            (folder / library.name).symlink_to(library)
    command = ["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{real.parents[1] / 'include'}", str(source)]
    command += ["-Wl,--no-as-needed", str(real / "libllama.so"), f"-Wl,-rpath,{real}"]
    subprocess.run([*command, "-o", str(folder / "libllama.so")], check=True)
    return folder
