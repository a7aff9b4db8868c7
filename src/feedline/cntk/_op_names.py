"""CNTK's names of operations, for `Function.op_name`, and identifiers that are made of them."""

from __future__ import annotations

from types import SimpleNamespace

from feedline.networks import Node

# Names that differ from the operation's words joined, as in ``element_times``, ``ElementTimes``.
_NAMES = {
    "relu": "ReLU",
    "elu": "ELU",
    "selu": "SELU",
    "param_relu": "ParametricReLU",
    "element_divide": "ElementTimes",
    "element_max": "ElementMax",
    "element_select": "Select",
    "times_transpose": "TransposeTimes",
    "transpose": "TransposeAxes",
    "log_add_exp": "LogPlus",
    "cosine_distance": "CosDistance",
    "cosine_distance_with_negative_samples": "CosDistanceWithNegativeSamples",
    "max_pooling": "Pooling",
    "average_pooling": "Pooling",
    "max_unpooling": "Unpooling",
    "sigmoid": "StableSigmoid",
    "binary_cross_entropy": "Logistic",
    "weighted_binary_cross_entropy": "Logistic",
    "convolution_transpose": "Convolution",
    "top_k": "TopK",
    "reduce_everything": "ReduceElements",
    "reduce_batch": "ReduceElements",
    "argmax": "ReduceElements",
    "argmin": "ReduceElements",
    "sequence_first": "Slice",
    "sequence_last": "Slice",
    "sequence_slice": "Slice",
    "sequence_where": "Where",
    "sequence_gather": "GatherPacked",
    "sequence_scatter": "ScatterPacked",
    "sequence_broadcast_as": "ReconcileDynamicAxis",
    "sequence_unpacked": "UnpackSequence",
    "sequence_mask": "UnpackSequence",
    "eye_rows": "EyeLikeOp",
    "lstm": "OptimizedRNNStack",
    "rnn": "OptimizedRNNStack",
    "random_uniform": "RandomDistribution",
    "random_normal": "RandomDistribution",
    "random_gumbel": "RandomDistribution",
    "random_bernoulli": "RandomDistribution",
    "user_output": "UserFunction",
}


# Whether functions that have a name may get another, as after `cntk_py.allow_renaming_functions`.
renaming = SimpleNamespace(allowed=False)


def function_uid(node: Node) -> str:
    """Return the identifier of the operation or block that computes a node, or of a leaf."""
    kind = "Block" if "block" in node.attributes else node.op.capitalize() if node.is_leaf else op_name(node)
    return f"{kind}{node.uid.removeprefix('n')}"


def variable_uid(node: Node) -> str:
    """Return the identifier of a leaf, or of the output of an operation."""
    return function_uid(node) if node.is_leaf else f"{function_uid(node)}_Output_0"


def op_name(node: Node) -> str:
    """Return the name of the operation, or of the kind of block, that computes a node."""
    if "block" in node.attributes:
        return str(node.attributes["block"])
    if node.op == "delay":
        return "PastValue" if node.attributes["steps"] > 0 else "FutureValue"
    if node.op not in _NAMES and node.op.startswith(("reduce_", "sequence_reduce_")):
        return "ReduceElements"
    return _NAMES.get(node.op) or "".join(word.capitalize() for word in node.op.split("_"))
