"""`cntk.debugging`: textual descriptions of functions, and the profiler."""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk.cntk_py import (
    force_deterministic_algorithms,
    set_computation_network_trace_level,
    set_fixed_random_seed,
)
from feedline.cntk.debugging import debug, profiler
from feedline.cntk.debugging.debug import DEBUG_USAGE, debug_model, get_checked_mode, set_checked_mode, set_node_timing
from feedline.cntk.debugging.profiler import disable_profiler, enable_profiler, start_profiler, stop_profiler
from feedline.cntk.logging.graph import depth_first_search

__all__, __getattr__ = names_of(__name__)


def dump_signature(root: Any, tag: str | None = None) -> None:
    """Print the arguments and outputs of a function under its name, or under ``tag``."""
    arguments = ", ".join(_type_text(v) for v in root.signature)
    outputs = [_type_text(v) for v in root.outputs]
    result = outputs[0] if len(outputs) == 1 else f"Tuple[{', '.join(outputs)}]"
    print(f"{root.name or tag or 'Function'}({arguments}) -> {result}")


def dump_function(root: Any, tag: str | None = None) -> None:
    """Print a function, and each operation and leaf below it, one per line."""
    dump_signature(root, tag)
    for item in depth_first_search(root, lambda node: True, depth=-1):
        print(f"  {item!r}")


def force_deterministic(seed: int) -> None:
    """Initialize all parameters from one seed, and make torch use deterministic kernels."""
    set_fixed_random_seed(seed)
    force_deterministic_algorithms()


def _type_text(variable: Any) -> str:
    shape = variable.node.type.shape
    axes = "" if variable.node.type.axes is None else ["ParameterTensor", "Tensor", "Sequence"][len(variable.node.axes)]
    kind = f"{'Sparse' if variable.is_sparse else ''}Tensor[{', '.join(map(str, shape)) if shape is not None else '?'}]"
    if axes == "Sequence":
        kind = f"Sequence[{kind}]"
    return f"{variable.name}: {kind}" if variable.name else kind
