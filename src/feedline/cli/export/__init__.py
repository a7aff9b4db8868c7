"""``feedline export``: write a network of MXNet, or its weights, as a file that other libraries read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.console import Debug, Json, UsageError, print_facts, print_json, show_bytes, show_count

_SUFFIXES = {"onnx": ".onnx", "safetensors": ".safetensors"}


def export(
    symbol: Annotated[Path, typer.Argument(help="The network: the `-symbol.json` of MXNet.")],
    params: Annotated[Path, typer.Argument(help="Its parameters: the `.params` of MXNet.")],
    to: Annotated[str, typer.Option("--to", metavar="onnx|safetensors", help="What to write: network, or weights.")],
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=LENGTHS",
            help="Shape of an input, the batch first: data=1,3,112,112. Repeat for each input. ONNX only.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file; overwrites. [default: next to PARAMS]")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a network of MXNet as ONNX, or its weights as safetensors."""
    if to not in _SUFFIXES:
        raise UsageError(f"expected --to {' or '.join(_SUFFIXES)}, got {to}")
    if shape and to != "onnx":
        raise UsageError(f"expected --shape for onnx only, got it for {to}, which has no inputs")
    shapes = dict(_parse_shape(text) for text in shape or ())
    from feedline.mxnet._onnx import load_network, write_symbol

    network, arrays = load_network(symbol, params)
    path = params.with_suffix(_SUFFIXES[to]) if out is None else out
    if to == "onnx":
        write_symbol(path, network, arrays, shapes)
    else:
        from feedline.interop.tensor_file import replace_tensors

        replace_tensors(path, {name: array.tensor for name, array in arrays.items()})
    size, count = path.stat().st_size, len(arrays)
    # Only the user knows whether one of them should have a parameter.
    inputs = [name for name in [*network.list_arguments(), *network.list_auxiliary_states()] if name not in arrays]
    if json:
        print_json({"path": str(path), "network": str(symbol), "parameters": count, "inputs": inputs, "bytes": size})
    else:
        facts = {"network": str(symbol), "parameters": show_count(count), "inputs": ", ".join(inputs) or "none"}
        print_facts(str(path), facts | {"size": show_bytes(size)})


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``data=1,3,112,112``.

    Raises:
        UsageError: it is none.
    """
    name, _, lengths = text.partition("=")
    if not name or not re.fullmatch(r"[1-9]\d{0,9}([,x][1-9]\d{0,9})*", lengths):
        raise UsageError(f"expected --shape as NAME=LENGTHS, such as data=1,3,112,112, got {text!r}")
    return name, tuple(int(length) for length in re.split("[,x]", lengths))
