"""The process that reads PyTorch's pickles: `python -P pickle_child.py FILE...`

Prints [dtype, numbers] of every tensor as JSON. torch loads them with weights_only, which creates only
tensors, and on the meta device, so that no weights are read.
"""

from __future__ import annotations

import json
import pickle
import sys

import torch

DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16"}


def main() -> None:
    found = []
    for file in sys.argv[1:]:
        try:
            tensors = torch.load(file, map_location="meta", mmap=True, weights_only=True)
        except pickle.UnpicklingError:
            sys.exit(f"{file}: holds objects other than tensors, which are not loaded: they could run code")
        except (RuntimeError, EOFError) as error:
            sys.exit(f"{file}: damaged or cut off: {next(iter(str(error).splitlines()), '')}")
        if not isinstance(tensors, dict) or not all(
            isinstance(one, torch.Tensor) for one in tensors.values()
        ):
            sys.exit(f"{file}: does not hold named tensors")
        found += [(DTYPES.get(one.dtype, str(one.dtype)), one.numel()) for one in tensors.values()]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
