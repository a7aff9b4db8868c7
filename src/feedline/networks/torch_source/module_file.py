"""Files of a network as source of torch: ``NAME.py`` with the module, and ``NAME.safetensors`` with its weights."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from feedline.interop.tensor_file import replace_tensors, sync
from feedline.networks import Node
from feedline.networks.torch_source import copied_functions
from feedline.networks.torch_source.comparing import check_equal
from feedline.networks.torch_source.source_writer import SourceWriter
from feedline.networks.traverse import element_type


def write_module(path: Path, w: SourceWriter, roots: Sequence[Node], inputs: Sequence[Node], origin: str) -> float:
    """Write a network as source and weights, replacing both files, once the source is checked to compute the same.

    Args:
        path: path of the source. The weights are next to it.
        w: writer of the roots.
        roots: outputs of the network.
        inputs: inputs, in the order of arguments.
        origin: name of the file that holds the network, for the docstring.

    Returns:
        The largest difference of an output on random inputs, relative to its largest value or 1.

    Raises:
        CompatError: an operation that the source cannot express, or an output that differs. The error names it.
    """
    for node in inputs:
        w.add_argument(node)
    results = [w.value(root) for root in roots]
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = path.with_suffix(".safetensors")
    source = module_source(w, roots, results, origin)
    with tempfile.TemporaryDirectory() as folder:
        tried = Path(folder) / path.name
        replace_tensors(tried.with_suffix(".safetensors"), w.parts.tensors)
        tried.write_text(source, encoding="utf-8")
        probe = module_source(w, roots, [name for _, name in w.written], origin)
        difference = check_equal(tried, probe, w, roots)
    replace_tensors(weights, w.parts.tensors)
    writing = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        writing.write_text(source, encoding="utf-8")
        writing.replace(path)
    except BaseException:
        writing.unlink(missing_ok=True)
        raise
    sync(path.parent)
    return difference


def module_source(w: SourceWriter, roots: Sequence[Node], results: Sequence[str], origin: str) -> str:
    """Return the source of a module whose ``forward`` has been written.

    Args:
        w: writer that has written it.
        roots: outputs, for the docstring.
        results: names of the values to return.
        origin: name of the file that holds the network.
    """
    functions = [
        inspect.getsource(function)
        for name, function in vars(copied_functions).items()
        if name in w.parts.called and inspect.isfunction(function)
    ]
    lengths = [name for axis, name in w.parts.lengths.items() if any(axis in node.axes for node in w.parts.arguments)]
    arguments = "".join(f", {name}: torch.Tensor" for name in (*w.parts.arguments.values(), *lengths))
    returned = ", ".join(results) if len(results) > 1 else results[0]
    kind = "torch.Tensor" if len(results) == 1 else "tuple[torch.Tensor, ...]"
    body = "\n\n\n".join(
        [
            *(text.strip() for text in functions),
            f'class Network(nn.Module):\n    """The network of {origin}.\n\n{_describe(w, roots)}    """',
        ]
    )
    head = [
        f'"""The network of {origin} as a module of torch, written by `feedline export --to torch`."""',
        "",
        "from pathlib import Path",
        "",
        "import torch",
        "from safetensors.torch import load_file",
        "from torch import nn",
    ]
    lines = [f"        {line}" for line in w.parts.members.values()]
    tail = [
        "",
        "    def __init__(self) -> None:",
        "        super().__init__()",
        *lines,
        "",
        f"    def forward(self{arguments}) -> {kind}:",
        *(f"        {line}" for line in w.lines),
        f"        return {returned}",
        "",
        "",
        'def load(weights: str | Path = Path(__file__).with_suffix(".safetensors")) -> Network:',
        '    """Return the network with the weights of a file, in evaluation mode."""',
        "    network = Network()",
        "    network.load_state_dict(load_file(weights))",
        "    return network.eval()",
        "",
    ]
    text = "\n".join([body, *tail])
    if "functional." in text:
        head.append("from torch.nn import functional")
    return "\n".join([*head, "", "", text])


def _describe(w: SourceWriter, roots: Sequence[Node]) -> str:
    """Return the lines of a docstring about arguments and results."""
    lines = ["    Args of ``forward``:"]
    lines += [f"        {name}: {_tensor(w, node)}." for node, name in w.parts.arguments.items()]
    for axis, name in w.parts.lengths.items():
        if any(axis in node.axes for node in w.parts.arguments):
            lines.append(f"        {name}: steps of each sequence, int64 (batch,). Later steps are padding.")
    lines += ["", "    Returns:"]
    lines += [f"        {root.name or 'the result'}: {_tensor(w, root)}." for root in roots]
    return "\n".join(lines) + "\n"


def _tensor(w: SourceWriter, node: Node) -> str:
    axes, shape = ["batch", "time"][: len(node.axes)], w.shape_of(node)
    text = f"{element_type(node)} ({', '.join(shape)}{',' if len(shape) == 1 else ''})"
    if node.op == "input" and node.sparse:
        text += f", or classes, int64 ({', '.join(axes)}{',' if len(axes) == 1 else ''})"
    return text
