"""`medusaq train-heads`: trains draft heads for a GGUF on its own answers."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.base.errors import BadInput, CliError, ModelNotLoadable
from cli.base.installing import to_install
from cli.base.output_files import check_writable

COMPOSED_PROMPTS = 50_000  # whatever --tokens is, so that raising it goes on from what is collected

TRAIN_EPILOG = """[bold]Examples[/]

medusaq train-heads model.gguf --prompts prompts.jsonl -o heads.safetensors

medusaq train-heads model.gguf -o heads.safetensors --tokens 3000000 --kind medusa

medusaq train-heads model.gguf -o mine.safetensors --prompts my-prompts.jsonl --begin heads.safetensors

The model first answers the prompts, then the heads are trained on these answers. After an interruption, even
kill -9, the same command continues where it stopped. Without --prompts, prompts are generated.

Exit codes: 0 done, 1 failed, 2 bad input, 3 no model, 130 Ctrl-C."""


class HeadKind(StrEnum):
    """Those of training.heads.recipe.Kind, which cannot be imported where training is not installed."""

    HYDRA = "hydra"
    MEDUSA = "medusa"


def train_heads(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="HEADS", help="safetensors file to write.")
    ],
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="GGUF path. (default: SmolLM2-135M-Instruct)")
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="jsonl or text file of prompts; may be repeated. (default: composed)"
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate and to train on.")] = 1_000_000,
    work: Annotated[
        Path | None, typer.Option(help="Folder for intermediate data, kept at the end. (default: HEADS.work)")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes that generate answers, sharing the cores.")
    ] = 1,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 176,
    kind: Annotated[
        HeadKind,
        typer.Option(help="hydra: each head reads the draft tokens before its own; medusa: none does."),
    ] = HeadKind.HYDRA,
    heads: Annotated[
        int, typer.Option(min=1, max=16, help="Number of heads, each of which predicts one further token.")
    ] = 4,
    layers: Annotated[int, typer.Option(min=1, max=8, help="Residual layers of each head.")] = 2,
    vocabulary: Annotated[
        int, typer.Option(min=8, help="Size of the draft vocabulary: the most frequent tokens.")
    ] = 6144,
    epochs: Annotated[
        int, typer.Option(min=1, help="Most passes over the data; training stops early without improvement.")
    ] = 4,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of Muon.")] = 0.05,
    soft: Annotated[
        float, typer.Option(help="Share of the loss against the model's own probabilities, 0 to 1.")
    ] = 0.0,
    begin: Annotated[
        Path | None,
        typer.Option(
            metavar="HEADS", help="Heads to begin with, of this model, --kind, --heads and --layers."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of sampling and of the order of training data.")] = 0,
    device: Annotated[str, typer.Option(help="Torch device: auto, cpu or cuda.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="0 is every core.")] = 0,
) -> None:
    """Train draft heads for a model on its own answers."""
    from rich.console import Console

    check_writable("-o", output, [model, *(prompts or ())])
    folder = work or output.with_name(output.name + ".work")
    try:
        from engine import EngineError, ModelLoadError
        from engine.llama.model import default_model_path
        from training.base.errors import PromptsError, TrainingError
        from training.collection.collect import CollectOptions
        from training.collection.parallel import collect_parts
        from training.collection.shards import make_folder
        from training.heads.recipe import Kind, Recipe, TrainOptions
        from training.heads.train import check, train
    except ImportError as error:
        raise CliError(f"training needs {error.name}: {to_install('worker,medusa,train')}") from None

    console = Console(stderr=True)
    try:
        path = model or default_model_path()
        recipe = Recipe(
            kind=Kind(kind),
            heads=heads,
            layers=layers,
            vocabulary=vocabulary,
            epochs=epochs,
            learning_rate=learning_rate,
            soft=soft,
            seed=seed,
        )
        options = TrainOptions(path, (), output, folder, recipe, device, threads, begin)
        check(options)
        make_folder(folder / "states")
        collecting = CollectOptions(
            prompts=tuple(prompts or [_composed(folder)]),
            out=folder / "states",
            model=path,
            tokens=tokens,
            max_tokens=max_tokens,
            seed=seed,
            threads=threads,
        )
        folders = collect_parts(collecting, processes, console)
        scores = train(replace(options, folders=folders), console)
    except PromptsError as error:
        raise BadInput(str(error)) from None
    except ModelLoadError as error:
        raise ModelNotLoadable(error.message) from None
    except (TrainingError, EngineError) as error:
        raise CliError(str(error)) from None
    typer.echo(f"{output}: {scores.text()}")


def _composed(folder: Path) -> Path:
    """The file of generated prompts, created if missing. Raises PromptsError."""
    from training.prompts.prompts import compose, write_prompts

    path = folder / f"prompts-{COMPOSED_PROMPTS}.jsonl"
    if not path.exists():
        write_prompts(path, compose(COMPOSED_PROMPTS))
    return path
