"""Operations with a lowering to torch, by topic. Importing this package declares them all."""

from feedline.networks.ops import (  # noqa: F401
    alignment,
    attention,
    convolution,
    elementwise,
    linear,
    losses,
    normalization,
    random,
    ranking,
    recurrence,
    reductions,
    regions,
    sequence,
    shape,
    steps,
    user_functions,
)
