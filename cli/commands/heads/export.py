"""`medusaq export-heads`: draft heads as one ONNX file, which is served without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.base.errors import BadInput, CliError, ModelNotLoadable
from cli.base.installing import to_install
from cli.base.output_files import check_writable

EXPORT_EPILOG = """[bold]Examples[/]

medusaq export-heads heads.safetensors --onnx heads.onnx

medusaq export-heads medusa_lm_head.pt --onnx heads.onnx --model vicuna.gguf --bits 4

The file contains the heads, the lm_head rows that they predict, and their metadata. Serve it with
MEDUSAQ_HEADS=heads.onnx. Pickles (.pt, .bin) need torch: pip install 'medusaq[train]'.

Exit codes: 0 done, 1 failed, 2 bad input, 3 no model."""


# Those of engine.medusa.onnx.format, which cannot be imported where the engine is not installed.
BITS = (8, 4)


def export_heads(
    heads: Annotated[Path, typer.Argument(metavar="HEADS", help="File of heads, or a folder with one.")],
    onnx: Annotated[Path, typer.Option("--onnx", metavar="OUT", help="ONNX file to write.")],
    model: Annotated[
        str | None,
        typer.Option(metavar="GGUF", help="The model of the heads. (default: SmolLM2-135M-Instruct)"),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits per weight of the lm_head: 8 or 4. The layers use 8.")] = 8,
) -> None:
    """Export draft heads as ONNX, with 8-bit or 4-bit weights."""
    check_writable("--onnx", onnx, [heads, model])
    if onnx.suffix != ".onnx":
        raise BadInput(f"--onnx: {onnx} must end in .onnx")
    if bits not in BITS:
        raise BadInput(f"--bits: must be 8 or 4, not {bits}")
    try:
        from engine import HeadsLoadError, ModelLoadError
        from engine.llama.model import default_model_path
        from engine.medusa.onnx.export import export
    except ImportError as error:
        raise CliError(f"exporting needs {error.name}: {to_install('worker,medusa')}") from None
    try:
        done = export(str(heads), onnx, model or default_model_path(), bits)
    except HeadsLoadError as error:
        raise BadInput(error.message) from None
    except ModelLoadError as error:
        raise ModelNotLoadable(error.message) from None
    except OSError as error:
        raise CliError(f"cannot write {onnx}: {error.strerror or error}") from None
    typer.echo(f"{onnx}: {done}")
