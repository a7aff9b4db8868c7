"""``feedline export``: write a network of CNTK or MXNet, or its weights, as files that other libraries read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.console import Debug, Json, UsageError, print_facts, print_json, show_bytes, show_count

_SUFFIXES = {"onnx": ".onnx", "safetensors": ".safetensors", "torch": ".py"}


def export(
    network: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A `.model` or `.dnn` of CNTK or feedline, or MXNet's `-symbol.json`."),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[PARAMS|OUT]", help="MXNet's `.params`, for a symbol. Otherwise as `--out`."),
    ] = None,
    to: Annotated[
        str,
        typer.Option("--to", metavar="onnx|torch|safetensors", help="What to write: the network, or weights alone."),
    ] = "",
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=LENGTHS",
            help="Shape of an input, the batch first: data=1,3,112,112. Repeat for each input. MXNet only.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file; overwrites. [default: next to MODEL or PARAMS]"),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a network of CNTK or MXNet as ONNX or as a module of torch, or its weights as safetensors."""
    if to not in _SUFFIXES:
        raise UsageError(f"expected --to {', '.join(_SUFFIXES)}, got {to or 'nothing'}")
    if shape and to == "safetensors":
        raise UsageError("expected --shape for onnx and torch only, got it for safetensors, which has no inputs")
    shapes = dict(_parse_shape(text) for text in shape or ())
    is_symbol = network.suffix in (".json", ".params")
    if is_symbol and file is None:
        raise UsageError(f"expected the .params of {network} after it, got nothing")
    if not is_symbol:
        if shapes:
            raise UsageError(f"expected --shape for symbols of MXNet only, got it for {network}, which has shapes")
        if file is not None and out is not None:
            raise UsageError(f"expected one file to write, got {file} and {out}")
        out, file = file or out, None
    path = (file or network).with_suffix(_SUFFIXES[to]) if out is None else out
    if to == "torch":
        if path.suffix not in ("", ".py", ".safetensors"):
            raise UsageError(f"expected the name of a Python file, NAME.py, to write for torch, got {path}")
        path = path.with_suffix(".py")
    written = _export_symbol(network, file, to, path, shapes) if file else _export_function(network, to, path)
    size = path.stat().st_size
    if json:
        print_json({"path": str(path), "network": str(network), **written, "bytes": size})
        return
    facts = {
        "network": str(network),
        "parameters": show_count(written["parameters"]),
        "inputs": ", ".join(name or "unnamed" for name in written["inputs"]) or "none",
    }
    if written["weights"] is not None:
        facts |= {"weights": written["weights"], "largest difference": f"{written['largest_difference']:.2g}"}
    print_facts(str(path), facts | {"size": show_bytes(size)})


def _export_symbol(
    symbol: Path, params: Path, to: str, path: Path, shapes: dict[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Write a network of MXNet, and return the facts about it."""
    from feedline.mxnet._export.symbol_graphs import load_network

    network, arrays = load_network(symbol, params)
    difference = None
    if to == "onnx":
        from feedline.mxnet._export.onnx_symbols import write_symbol

        write_symbol(path, network, arrays, shapes)
    elif to == "torch":
        from feedline.mxnet._export.torch_symbols import write_torch

        difference = write_torch(path, network, arrays, shapes, symbol.name)
    else:
        from feedline.interop.tensor_file import replace_tensors

        replace_tensors(path, {name: array.tensor for name, array in arrays.items()})
    # Only the user knows whether one of them should have a parameter.
    inputs = [name for name in [*network.list_arguments(), *network.list_auxiliary_states()] if name not in arrays]
    return _facts(path, len(arrays), inputs, difference)


def _export_function(model: Path, to: str, path: Path) -> dict[str, Any]:
    """Write a function of CNTK or feedline, and return the facts about it.

    Raises:
        UsageError: weights alone, whose names need not be unique in such a file.
    """
    if to == "safetensors":
        raise UsageError(
            f"expected --to onnx or torch for {model}, got safetensors; --to torch writes the weights, too, by the "
            "names of its layers"
        )
    from feedline.cntk import Function, ModelFormat

    function = Function.load(str(model))
    difference = None
    if to == "onnx":
        function.save(str(path), format=ModelFormat.ONNX)
    else:
        from feedline.cntk._torch_source import write_torch

        roots, inputs = ([variable.node for variable in side] for side in (function.outputs, function.arguments))
        difference = write_torch(path, roots, inputs, model.name)
    return _facts(path, len(function.parameters), [variable.name for variable in function.arguments], difference)


def _facts(path: Path, parameters: int, inputs: list[str], difference: float | None) -> dict[str, Any]:
    weights = None if difference is None else str(path.with_suffix(".safetensors"))
    return {"parameters": parameters, "inputs": inputs, "weights": weights, "largest_difference": difference}


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``data=1,3,112,112``.

    Raises:
        UsageError: it is none.
    """
    name, _, lengths = text.partition("=")
    if not name or not re.fullmatch(r"[1-9]\d{0,9}([,x][1-9]\d{0,9})*", lengths):
        raise UsageError(f"expected --shape as NAME=LENGTHS, such as data=1,3,112,112, got {text!r}")
    return name, tuple(int(length) for length in re.split("[,x]", lengths))
