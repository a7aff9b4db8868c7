"""CNTK 2.7's numbers of operations in files, and the operations without an equivalent in feedline."""

from __future__ import annotations

_IN_ORDER = """\
Negate Sigmoid Tanh ReLU Exp Log Sqrt Floor Abs Reciprocal Softmax Hardmax TransposeAxes Where Slice Dropout Reshape
Pooling SumAll Plus Minus ElementTimes Equal NotEqual Less LessEqual Greater GreaterEqual PackedIndex GatherPacked
ScatterPacked Times TransposeTimes Convolution SquaredError CrossEntropyWithSoftmax ClassificationError PastValue
FutureValue ReduceElements BatchNormalization Clip Select Splice Combine RandomSample RandomSampleInclusionFrequency
ROIPooling Logistic OptimizedRNNStack ReconcileDynamicAxis LogSoftmax LogPlus CosDistance Sin Cos Pass Block Unpooling
LambdaRank NDCG EditDistanceError NoOp LabelsToGraph StopGradient ELU ForwardBackward CosDistanceWithNegativeSamples
OneHot Pow ToSequence ToSequenceLike UnpackSequence Assign Gather StableSigmoid RandomDistribution Sinh Cosh
UnpackBatch ToBatch Asin Acos Pad Crop Atanh Asinh TopK Squeeze ConstantOp LatticeSequenceWithSoftmax Cast EyeLikeOp
CustomProxyOp StraightThrough Tan Atan ConvolutionSequenceShape"""

NAMES = dict(enumerate(_IN_ORDER.split()))
CODES = {name: code for code, name in NAMES.items()}

_IN_TORCH = "write it in torch, in a UserFunction, and build the network around it in Python"
# Advice for operations that feedline does not compute.
ABSENT = {
    "OptimizedRNNStack": "in CNTK, convert_optimized_rnnstack makes layers of it that load here",
    "ToSequence": "declare the input by sequence.input_variable and feed sequences",
    "ToSequenceLike": "declare the input by sequence.input_variable and feed sequences",
    "LatticeSequenceWithSoftmax": _IN_TORCH,
    "CustomProxyOp": _IN_TORCH,
    "ConvolutionSequenceShape": "splice delayed sequences to convolve over time",
}
