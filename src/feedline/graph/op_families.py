"""The families of operations that pictures distinguish, by the names of operations in torch, MXNet, CNTK and ONNX."""

from __future__ import annotations

import re

from feedline.graph.costs import VIEWS, base

# The first family that matches a kind counts. Words are without case and underscores.
_WORDS = (
    ("loss", r".*loss.*|.*crossentropy.*|.*output|.*error|.*distance|.*similarity"),
    ("attention", r".*attention.*|transformer.*"),
    ("recurrent", r"(bi)?(lstm|gru|rnn).*|.*recurren.*|state|delay|pastvalue|futurevalue|loop"),
    ("dropout", r".*dropout.*|droppath|stochasticdepth"),
    ("normalisation", r".*norm.*|lrn"),
    ("convolution", r"(quantized)?conv.*|deconv.*|upconv.*|.*unfold|fold"),
    ("pooling", r".*pool.*|.*upsampl.*|interpolate|.*resize.*"),
    (
        "activation",
        r".*relu6?|.*elu|.*sigmoid|.*tanh|.*softmax|.*softplus|hardmax|.*swish|.*shrink|softsign|mish|silu|glu"
        r"|activation|hardtanh|threshold|gelu|prelu|leakyrelu|clip|clamp.*",
    ),
    (
        "product",
        r"linear|fullyconnected|gemm|dense|matmul|mm|bmm|mv|dot|inner|batchdot|b?addb?mm|addmv|times.*|bilinear|einsum"
        r"|embedding.*|embeddingbag",
    ),
    (
        "shape",
        r"cat|concat.*|stack|splice|pad.*|.*slice.*|gather|index.*|take|reshape.*|.*flatten.*|.*permute.*|roll|flip"
        r"|repeat.*|tile|setitem|meshgrid|.*transpose.*|zeros.*|ones.*|full.*|arange|empty.*|onehot|clone|.*copy",
    ),
)
FAMILIES = ("input", "parameter", *(family for family, _ in _WORDS), "other")
_PATTERNS = tuple((family, re.compile(words)) for family, words in _WORDS)


def family(kind: str) -> str:
    """Return the family of an operation, or ``"other"`` if none matches."""
    word = base(kind)
    if word in ("input", "placeholder", "output"):
        return "input"
    if word in VIEWS:
        return "shape"
    return next((name for name, pattern in _PATTERNS if pattern.fullmatch(word)), "other")
