"""The names of CNTK's networks, and what of them is here; part of `_names`."""

from __future__ import annotations

from feedline._facades import Names
from feedline._facades import alike as _all

_STREAMS = "distributions are CNTK's, numbers come from torch's generators"
_FILLED = "distributions and seeds are CNTK's, the numbers made of a seed are torch's"
_SEED = "`seed` is not used: numbers come from torch's generator"
_STATISTICS = (
    "a minibatch of one number leaves the running variance alone (CNTK: it becomes NaN); `blend_time_constant` is "
    "used on every device (CNTK: not on the CPU)"
)
_KERNELS = "kernels are shared and static: no `sequential`, no `sharing=False`"
_BLOCKS = "`depth` is not looked at: blocks are open"
_FILE = "safetensors with the graph as JSON: not CNTK's format, nor ONNX"
_UID = "unique, but of another form"
TORCH = "write it in torch, as a module or a UserFunction"
_ATTENTION = "over whole sequences: no `attention_span`; its weights are no output that can be found by name"
_UNFOLD = "all steps are computed, also behind an end that `until_predicate` finds"
_FEED = "declare the input by sequence.input_variable and feed sequences"

NETWORKS: dict[str, Names] = {
    "cntk.default_options": Names(
        provided="default_options default_options_for default_override_or get_default_override is_default_override",
        absent=_all("get_global_option set_global_option", "give options to layers, or by `default_options`"),
    ),
    "cntk.initializer": Names(
        provided="DefaultParamInitScale SentinelValueForAutoSelectRandomSeed SentinelValueForInferParamInitRank "
        "bilinear initializer_with_rank",
        approximated=_all(
            "glorot_normal glorot_uniform he_normal he_uniform normal truncated_normal uniform xavier",
            _FILLED,
        ),
    ),
    "cntk.layers": Names(provided="BlockFunction default_options default_options_for"),
    "cntk.layers.blocks": Names(
        provided="ForwardDeclaration GRU LSTM RNNStep RNNUnit Stabilizer identity",
        absent={"UntestedBranchError": "nothing raises it"},
    ),
    "cntk.layers.higher_order_layers": Names(
        provided="For ResNetBlock Sequential SequentialClique",
    ),
    "cntk.layers.layers": Names(
        provided=(
            "Activation AveragePooling Convolution1D Convolution2D Convolution3D ConvolutionTranspose1D "
            "ConvolutionTranspose2D ConvolutionTranspose3D Dense Embedding GlobalAveragePooling GlobalMaxPooling "
            "Label LayerNormalization MaxPooling MaxUnpooling"
        ),
        approximated={
            "BatchNormalization": _STATISTICS,
            **_all("Convolution ConvolutionTranspose", _KERNELS),
            "Dropout": _SEED,
        },
        absent={"SequentialConvolution": "use PastValueWindow, or convolve over a static axis"},
    ),
    "cntk.layers.sequence": Names(
        provided="Delay Fold PastValueWindow Recurrence RecurrenceFrom",
        approximated={"UnfoldFrom": _UNFOLD},
    ),
    "cntk.layers.models": Names(approximated={"AttentionModel": _ATTENTION}),
    "cntk.layers.models.attention": Names(approximated={"AttentionModel": _ATTENTION}),
    "cntk.layers.typing": Names(
        provided="ParameterTensor Sequence SequenceOver Signature SparseTensor Tensor tensor",
        absent={"SequenceOverMeta": "use SequenceOver[axis][Tensor[shape]]"},
    ),
    "cntk.losses": Names(
        provided=(
            "binary_cross_entropy cosine_distance cross_entropy_with_softmax squared_error "
            "weighted_binary_cross_entropy"
        ),
        absent=_all(
            "cosine_distance_with_negative_samples fmeasure hierarchical_softmax_layer lambda_rank "
            "lattice_sequence_with_softmax nce_loss",
            TORCH,
        ),
    ),
    "cntk.metrics": Names(
        provided="classification_error",
        absent=_all("edit_distance_error ndcg_at_1", TORCH),
    ),
    "cntk.ops": Names(
        provided=(
            "TIMES_NO_INFERRED_INPUT_RANK TIMES_REDUCE_SEQUENCE_AXIS_WITHOUT_INFERRED_INPUT_RANK input "
            "AVG_POOLING BlockFunction CONSTANT_PAD CloneMethod Function Function.NamedOutput "
            "Function.argument_map Function.arguments Function.attributes Function.block_root Function.clone "
            "Function.constants Function.dtype Function.dynamic_axes Function.eval Function.forward Function.grad "
            "Function.inputs Function.is_block Function.is_composite Function.is_primitive Function.is_sparse "
            "Function.name Function.op_name Function.output Function.outputs Function.owner Function.parameters "
            "Function.placeholders Function.replace_placeholder Function.replace_placeholders Function.shape "
            "Function.signature Function.type Function.update_signature Function.with_signature MAX_POOLING "
            "PoolingType_Average PoolingType_Max REFLECT_PAD SYMMETRIC_PAD UserFunction.backward "
            "UserFunction.forward UserFunction.infer_outputs UserFunction.user_inputs abs acos argmax argmin assign "
            "Function.test Function.train MAX_UNPOOLING crop_manual depth_to_space mean "
            "mean_variance_normalization space_to_depth sum top_k unpooling "
            "as_block asin asinh atan atanh binary_cross_entropy ceil classification_error clip combine constant "
            "cos cosh cross_entropy_with_softmax element_and element_divide element_max "
            "element_min element_not element_or element_select element_times element_xor elu equal exp "
            "expand_dims eye_like flatten floor gather greater greater_equal hard_sigmoid hardmax image_scaler "
            "input_variable leaky_relu less less_equal log log_add_exp log_softmax minus negate not_equal one_hot "
            "ones_like output_variable param_relu parameter per_dim_mean_variance_normalize placeholder "
            "placeholder_variable plus pow reciprocal reconcile_dynamic_axes reduce_l1 reduce_l2 reduce_log_sum "
            "reduce_log_sum_exp reduce_max reduce_mean reduce_min reduce_sum reduce_sum_square relu "
            "reshape round selu sigmoid sin sinh softmax softplus softsign splice sqrt square squared_error "
            "squeeze stop_gradient swapaxes tanh times times_transpose transpose user_function "
            "weighted_binary_cross_entropy zeros_like"
        ),
        mended={
            "cosine_distance": "its gradient at a sample of zeros is finite (CNTK: NaN)",
            "local_response_normalization": "a window wider than the channels is centred (CNTK: shifted)",
            "reduce_prod": "its gradient where an element is 0 (CNTK: 0)",
            "tan": "its gradient (CNTK: that of the square of the cosine of the result)",
        },
        approximated={
            "Function.backward": "`root_gradients` may be a number for all samples",
            "Function.block_arguments_mapping": "inside and outside are the same variables",
            **_all("Function.find_all_by_name Function.find_by_name Function.find_by_uid", _BLOCKS),
            **_all(
                "Function.load Function.restore Function.restore_model Function.save Function.save_model load_model",
                _FILE,
            ),
            "Function.root_function": "the function itself",
            "Function.uid": _UID,
            "UserFunction": "no serialization; data with sequences comes as a list of arrays",
            "alias": "a name for a node, not a copy",
            "as_composite": "the function itself: functions are not wrapped",
            "batch_normalization": _STATISTICS,
            **_all("convolution convolution_transpose", _KERNELS),
            "dropout": _SEED,
            "pad": "without `SYMMETRIC_PAD`",
            "random_sample": f"dense, and {_SEED}",
            "pooling": "without `ceil_out_dim` and `include_pad`",
            "slice": "strides are positive",
        },
        absent={
            "ModelFormat": "functions are saved as safetensors, with the graph as JSON",
            "associative_multi_arg": "a helper of CNTK's own code",
            **_all(
                "cast crop_automatic crop_automatic_with_ancestors forward_backward labels_to_graph "
                "random_sample_inclusion_frequency roi_pooling straight_through_impl",
                TORCH,
            ),
            **_all(
                "custom_proxy_op native_user_function register_native_user_function",
                "write a UserFunction, or a torch extension",
            ),
            "optimized_rnnstack": "use layers.Recurrence(layers.LSTM(n)), which runs by torch's kernel",
            "roipooling": "use torchvision.ops.roi_pool in a UserFunction",
            **_all("to_batch to_sequence to_sequence_like unpack_batch", _FEED),
        },
        added={
            "Function.network": "the `torch.nn.Module` that runs it",
            "Function.node": "the node of `feedline.networks`",
            "Function.of": "from nodes of `feedline.networks`",
            "UserFunction.backward_rows": "what the graph calls",
            "UserFunction.forward_rows": "what the graph calls",
        },
    ),
    "cntk.ops.functions": Names(
        provided="BlockFunction CloneMethod Function",
        approximated={
            "UserFunction": "no serialization; data with sequences comes as a list of arrays",
            "load_model": _FILE,
        },
        absent={
            "ModelFormat": "functions are saved as safetensors, with the graph as JSON",
            **_all("native_user_function register_native_user_function", "write a UserFunction, or a torch extension"),
            "register_udf_deserialize_callback": "no user's function is in a file: build the network and use `restore`",
        },
    ),
    "cntk.ops.sequence": Names(
        provided=(
            "broadcast_as delay first future_value input input_variable is_first is_last last past_value "
            "reduce_max reduce_sum slice softmax where"
        ),
        approximated=_all("gather scatter", "lengths follow from the condition: no `new_sequence_axis_typeinfo`"),
        absent={
            "reduce_concat": TORCH,
            "unpack": "sequence.softmax and sequence.reduce_sum attend without it, or use torch",
            "window": "use layers.PastValueWindow",
        },
    ),
    "cntk.random": Names(
        approximated=_all(
            "bernoulli bernoulli_like gumbel gumbel_like normal normal_like uniform uniform_like",
            _STREAMS,
        ),
    ),
    "cntk.variables": Names(
        provided=(
            "Constant Constant.asarray Constant.value Parameter Parameter.asarray Parameter.value Record "
            "Record.updated_with Variable Variable.dtype Variable.dynamic_axes Variable.is_constant "
            "Variable.is_input Variable.is_output Variable.is_parameter Variable.is_placeholder "
            "Variable.is_sparse Variable.name Variable.needs_gradient Variable.owner Variable.shape Variable.type"
        ),
        approximated={
            "Variable.uid": _UID,
        },
        absent={"VariableMixin": "use `Variable`"},
        added={
            "Constant.tensor": "the `torch.nn.Parameter`",
            "Parameter.tensor": "the `torch.nn.Parameter`",
            "Variable.node": "the node of `feedline.networks`",
        },
    ),
}
