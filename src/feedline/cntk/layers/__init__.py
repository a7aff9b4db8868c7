"""`cntk.layers`: factories of functions with parameters of their own.

A layer is a function of a placeholder. Applied twice, it shares its parameters; what it cannot know before, the size
of its input, settles at the first application.
"""

from __future__ import annotations

from typing import Any

from feedline.cntk._names import explain
from feedline.cntk.default_options import default_options, default_options_for
from feedline.cntk.layers.blocks import GRU, LSTM, ForwardDeclaration, RNNStep, RNNUnit, Stabilizer, identity
from feedline.cntk.layers.higher_order_layers import For, ResNetBlock, Sequential, SequentialClique
from feedline.cntk.layers.layers import (
    Activation,
    AveragePooling,
    BatchNormalization,
    Convolution,
    Convolution1D,
    Convolution2D,
    Convolution3D,
    ConvolutionTranspose,
    ConvolutionTranspose1D,
    ConvolutionTranspose2D,
    ConvolutionTranspose3D,
    Dense,
    Dropout,
    Embedding,
    GlobalAveragePooling,
    GlobalMaxPooling,
    Label,
    LayerNormalization,
    MaxPooling,
    MaxUnpooling,
)
from feedline.cntk.layers.models.attention import AttentionModel
from feedline.cntk.layers.sequence import Delay, Fold, PastValueWindow, Recurrence, RecurrenceFrom, UnfoldFrom
from feedline.cntk.layers.typing import ParameterTensor, Sequence, SequenceOver, Signature, SparseTensor, Tensor, tensor
from feedline.cntk.ops.functions import BlockFunction

__all__ = [
    "GRU",
    "LSTM",
    "Activation",
    "AttentionModel",
    "AveragePooling",
    "BatchNormalization",
    "BlockFunction",
    "Convolution",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "ConvolutionTranspose",
    "ConvolutionTranspose1D",
    "ConvolutionTranspose2D",
    "ConvolutionTranspose3D",
    "Delay",
    "Dense",
    "Dropout",
    "Embedding",
    "Fold",
    "For",
    "ForwardDeclaration",
    "GlobalAveragePooling",
    "GlobalMaxPooling",
    "Label",
    "LayerNormalization",
    "MaxPooling",
    "MaxUnpooling",
    "ParameterTensor",
    "PastValueWindow",
    "RNNStep",
    "RNNUnit",
    "Recurrence",
    "RecurrenceFrom",
    "ResNetBlock",
    "Sequence",
    "SequenceOver",
    "Sequential",
    "SequentialClique",
    "Signature",
    "SparseTensor",
    "Stabilizer",
    "Tensor",
    "UnfoldFrom",
    "default_options",
    "default_options_for",
    "identity",
    "tensor",
]


def __getattr__(name: str) -> Any:
    raise explain("cntk.layers", name)
