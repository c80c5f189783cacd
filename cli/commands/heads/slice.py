"""`medusaq slice-heads`: reduces published heads to the most frequent tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.base.errors import BadInput, CliError, ModelNotLoadable
from cli.base.installing import to_install
from cli.base.output_files import check_writable

SLICE_EPILOG = """[bold]Examples[/]

medusaq slice-heads FasterDecoding/medusa-vicuna-7b-v1.3 --model vicuna.gguf -o heads.safetensors

medusaq slice-heads heads.pt --model vicuna.gguf -o heads.safetensors --tokens 4096 --text answers.txt

Nothing is trained: each head's lm_head keeps only the rows of the tokens that are most frequent in the texts.
The heads then predict only these tokens, at less cost. Answers do not change.

Exit codes: 0 done, 1 failed, 2 bad input, 3 no model, 130 Ctrl-C."""


def slice_heads(
    heads: Annotated[
        str, typer.Argument(metavar="HEADS", help="File or folder of heads, or their name on the hub.")
    ],
    model: Annotated[str, typer.Option(metavar="GGUF", help="The model of the heads.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="safetensors file to write.")],
    tokens: Annotated[int, typer.Option(min=1, help="Size of the draft vocabulary.")] = 8192,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Text or jsonl of prompts to count; may be repeated. (default: composed)"
        ),
    ] = None,
) -> None:
    """Cut full draft heads to a draft vocabulary."""
    check_writable("-o", output, [heads, model, *(text or ())])
    try:
        from compiling.base.errors import CompileError
        from compiling.source.hub_heads import find
        from engine import EngineError, ModelLoadError
        from training.base.errors import PromptsError, TrainingError
        from training.heads.slicing import slice_heads
    except ImportError as error:
        raise CliError(f"slicing heads needs {error.name}: {to_install('worker,medusa,compile')}") from None
    try:
        done = slice_heads(find(heads), model, output, tokens=tokens, texts=text or (), source=heads)
    except PromptsError as error:
        raise BadInput(str(error)) from None
    except ModelLoadError as error:
        raise ModelNotLoadable(error.message) from None
    except (TrainingError, CompileError, EngineError) as error:
        raise CliError(str(error)) from None
    typer.echo(
        f"{output}: {done.heads} heads, {done.tokens} of {done.vocab_size} tokens, which are "
        f"{done.coverage:.1%} of the counted text"
    )
