"""The names of MXNet 1.9.1, and what of them is here; docs/compat/mxnet.md is made from this."""

from __future__ import annotations

from feedline import _facades
from feedline._facades import Names
from feedline._facades import alike as _all
from feedline.mxnet._absent_operators import ARRAYS, CONTRIB, SPARSE, SYMBOLS

_NETWORKS = "write the model in torch.nn, and push its gradients to `fl.kvstore.create(...)`"
_FEEDING = "use `fl.MinibatchSource` over a store, CTF or Parquet"
_FILLING = "fill `array.tensor` with `torch.nn.init`"
_ARRAYS = "use torch: `array.tensor` is the tensor beneath an NDArray"
_BOXES = "use torchvision.ops"
_INSIDE = "a part of MXNet's own code: the public names are in the package"
_RULES = "use `feedline.train`, or register a rule with `feedline.kvstore.register_optimizer`"


def explain(module: str, name: str) -> Exception:
    """The error for a name that ``module`` lacks."""
    return _facades.explain(NAMES, module, name)


NAMES: dict[str, Names] = {
    "mxnet": Names(
        provided="AttrScope Context MXNetError attribute base context cpu cpu_pinned current_context executor gluon "
        "gpu init initializer io kv kvstore metric name nd ndarray num_gpus optimizer sym symbol visualization viz",
        absent={
            **_all(
                "autograd mod model module monitor np npx operator rtc",
                _NETWORKS,
            ),
            **_all("image recordio", _FEEDING),
            **_all("callback lr_scheduler", "use schedules and reporters of `feedline.train`"),
            **_all("contrib random rnd test_utils", _ARRAYS),
            "kvstore_server": "servers are started by the store that needs them",
            "profiler": "use torch's profiler",
            "engine": "calls are done when they return: there is nothing to wait for",
            "error": "errors are `MXNetError`, and of feedline's classes",
            "executor_manager": _NETWORKS,
            "img": _FEEDING,
            "mon": _NETWORKS,
            "onnx": "export the torch module: `torch.onnx`",
            "rnn": _NETWORKS,
            "runtime": "there is no library of MXNet's here",
            **_all("libinfo library tvmop", "there is no library of MXNet's here"),
            **_all("log notebook", "use Python's logging, and `fl.report`"),
            **_all(
                "is_np_array is_np_shape np_array np_shape np_symbol numpy numpy_dispatch_protocol numpy_extension "
                "numpy_op_fallback numpy_op_signature set_np_shape use_np use_np_array use_np_shape",
                "use NumPy, or torch",
            ),
            **_all("api ndarray_doc registry symbol_doc util", _INSIDE),
            **_all("th torch", "import torch"),
        },
        added={"install": "make `import mxnet` mean this façade in this process"},
    ),
    "mxnet.attribute": Names(provided="AttrScope AttrScope.get", added={"AttrScope.current": "the innermost"}),
    "mxnet.base": Names(
        provided="MXNetError NotImplementedForSymbol integer_types numeric_types py_str string_types",
        absent=_all(
            "MXCallbackList NotSupportedForSparseNDArray add_fileline_to_docstring build_param_doc c2pyerror c_array "
            "c_array_buf c_handle_array c_str c_str_array check_call classproperty ctypes2buffer ctypes2numpy_shared "
            "data_dir data_dir_default get_last_ffi_error mx_float_p register_error with_metaclass",
            _INSIDE,
        ),
    ),
    "mxnet.context": Names(
        provided="Context current_context gpu num_gpus",
        approximated=_all("cpu cpu_pinned", "any number names the same host memory, which is never pinned"),
        absent={"gpu_memory_info": "use torch.cuda.mem_get_info"},
        added={"Context.device": "the `torch.device`"},
    ),
    "mxnet.executor": Names(
        provided="Executor Executor.arg_arrays Executor.arg_dict Executor.aux_arrays Executor.aux_dict "
        "Executor.copy_params_from Executor.forward Executor.grad_arrays Executor.grad_dict Executor.output_dict",
        approximated={
            "Executor.backward": "after `forward(is_train=True)`; an output that is no loss needs `out_grads` (MXNet: "
            "whatever lies in memory)",
            "Executor.outputs": "fresh arrays after each `forward`",
            "Executor.reshape": "arrays of another shape are fresh zeros, never a part of the old ones",
        },
    ),
    "mxnet.gluon": Names(
        mended={
            "Trainer.load_states": "restores all devices",
            "Trainer.save_states": "the same file wherever updates are made",
            "Trainer.set_learning_rate": "reaches the optimizer of ``dist_sync``; where it cannot (``dist_async``) it "
            "is an error",
            "Trainer.step": "may be called with another batch size at any time, but with ``dist_async``",
            "Trainer.update": "as `step`",
        },
        provided="Trainer.learning_rate Trainer.optimizer",
        approximated={
            "Trainer": "over parameters of torch: a dict by name, a list, or for each parameter a list of its copies "
            "on several devices; a step forgets gradients, so that `backward()` writes them anew; "
            "`update_on_kvstore=True` without a store is a ValueError (MXNet: AttributeError)",
            "Trainer.allreduce_grads": "adds up in one call of the store",
        },
        absent={
            **_all(
                "Block Constant HybridBlock Parameter ParameterDict SymbolBlock block contrib loss model_zoo nn "
                "parameter rnn utils",
                _NETWORKS,
            ),
            "DeferredInitializationError": _NETWORKS,
            "data": "use `feedline.DataLoader`, or `fl.MinibatchSource`",
            "trainer": "`Trainer` is in `mxnet.gluon`",
        },
    ),
    "mxnet.initializer": Names(
        provided="Constant InitDesc Initializer Initializer.dumps Normal One Uniform Xavier Zero create",
        absent=_all("Bilinear FusedRNN LSTMBias Load MSRAPrelu Mixed Orthogonal register", _FILLING),
        added=_all(
            "Constant.fill Initializer.fill Normal.fill One.fill Uniform.fill Xavier.fill Zero.fill",
            "fills an array as a weight, whatever its name",
        ),
    ),
    "mxnet.io": Names(
        provided="DataBatch DataDesc DataDesc.get_batch_axis DataIter DataIter.getdata DataIter.getindex "
        "DataIter.getlabel DataIter.getpad DataIter.iter_next DataIter.next DataIter.reset NDArrayIter.getdata "
        "NDArrayIter.getlabel NDArrayIter.getpad NDArrayIter.hard_reset NDArrayIter.iter_next "
        "NDArrayIter.provide_data NDArrayIter.provide_label",
        approximated={
            "NDArrayIter": "the order is feedline's, by `seed`; the first epoch is shuffled as it is, without `reset`",
            "NDArrayIter.reset": "before the first batch of an epoch nothing",
        },
        absent={
            **_all(
                "CSVIter ImageDetRecordIter ImageRecordInt8Iter ImageRecordIter ImageRecordIter_v1 "
                "ImageRecordUInt8Iter ImageRecordUInt8Iter_v1 LibSVMIter MNISTIter MXDataIter PrefetchingIter "
                "ResizeIter",
                _FEEDING,
            ),
            **_all("io utils", _INSIDE),
        },
        added={
            "NDArrayIter.load_state_dict": "go on where another one stood",
            "NDArrayIter.state_dict": "where it stands",
        },
    ),
    "mxnet.kvstore": Names(
        provided="KVStore KVStore.broadcast KVStore.is_capable KVStore.num_workers KVStore.rank KVStore.type",
        mended={
            "KVStore.init": "all keys of a call are made, or none (MXNet: those before the faulty one, str keys "
            "without a value)",
            "KVStore.pull": "a pull of a key that was refused before works once the key is made",
            "KVStore.push": "copies, so what is done to the pushed arrays afterwards does not reach the store; checks "
            "shapes and dtypes, of single values too; any number of values at any time (MXNet: wrong sums, or the "
            "process dies); an exception of the updater reaches the caller, and the store stays as it was (MXNet: "
            "printed and forgotten)",
            "KVStore.pushpull": "as `push`",
            "KVStore.row_sparse_pull": "rows out of range are an error (MXNet: zeros, or memory out of bounds)",
            "KVStore.set_gradient_compression": "may be called at any time, for any number of values; unknown "
            "parameters are an error; `1bit`, `fp16` and `bf16` too",
            "create": "an unknown name is an error (MXNet: a local store); `local_allreduce_cpu`, `local_update_cpu` "
            "and `local_allreduce_device` are accepted",
        },
        approximated={
            "KVStore.load_optimizer_states": "files of feedline's, safetensors and JSON; MXNet's own are pickles, and "
            "refused; update counts are restored too",
            "KVStore.save_optimizer_states": "as `load_optimizer_states`; `dump_optimizer=True` leaves out "
            "`rescale_grad`, which depends on the number of workers",
            "KVStore.set_optimizer": "also a name; an optimizer that keeps states is for one store (MXNet: each store "
            "keeps its own)",
        },
        absent={
            "KVStoreBase": "register stores with `feedline.kvstore.register`",
            "KVStoreServer": "servers are started by the store that needs them",
            "kvstore_server": "servers are started by the store that needs them",
        },
        added={
            "KVStore.barrier": "as `_barrier`",
            "KVStore.close": "let go of everything",
            "KVStore.set_updater": "as `_set_updater`, whose name it was before 1.0; str keys reach an updater as str "
            "(MXNet: bytes); `None` goes back to assigning",
        },
    ),
    "mxnet.metric": Names(
        provided="Accuracy CompositeEvalMetric CompositeEvalMetric.add CompositeEvalMetric.get "
        "CompositeEvalMetric.get_metric CompositeEvalMetric.reset CompositeEvalMetric.update "
        "CompositeEvalMetric.update_dict CrossEntropy CustomMetric CustomMetric.update EvalMetric EvalMetric.get "
        "EvalMetric.get_name_value EvalMetric.reset EvalMetric.update EvalMetric.update_dict F1 F1.reset Loss "
        "Loss.update MAE MSE NegativeLogLikelihood Perplexity.get RMSE TopKAccuracy check_label_shapes create np",
        mended={"Perplexity": "`axis` is the axis of the classes (MXNet: ignored, always the last)"},
        absent=_all("Caffe MCC PCC PearsonCorrelation Torch", "use scikit-learn's metrics"),
    ),
    "mxnet.name": Names(
        provided="NameManager NameManager.get Prefix Prefix.get",
        added={"NameManager.current": "the innermost"},
    ),
    "mxnet.ndarray": Names(
        provided="NDArray NDArray.as_in_context NDArray.asnumpy NDArray.asscalar NDArray.astype NDArray.context "
        "NDArray.copy NDArray.copyto NDArray.ctx NDArray.dtype NDArray.ndim NDArray.shape NDArray.size NDArray.stype "
        "arange array full ones ones_like sparse zeros zeros_like",
        approximated={
            "NDArray.reshape": "lengths and -1; MXNet's other codes raise `CompatError`",
            "NDArray.sum": "over all elements",
            "NDArray.tostype": "`default` and `row_sparse`",
            **_all("NDArray.wait_to_read waitall", "calls on the CPU are done when they return"),
            "empty": "holds zeros",
        },
        absent={
            **_all(
                "Activation BatchNorm Concat Convolution Dropout Embedding Flatten FullyConnected Pooling Reshape abs "
                "add argmax broadcast_add clip concat concatenate contrib cos dot elemwise_add exp image linalg load "
                "log maximum mean minimum norm power random relu save sgd_update sigmoid softmax split sqrt square "
                f"stack sum take tanh transpose where {ARRAYS}",
                _ARRAYS,
            ),
            **_all(
                "gen__internal gen_contrib gen_image gen_linalg gen_op gen_sparse get_indexing_dispatch_code "
                "get_oshape_of_gather_nd_op indexing_key_expand_implicit_axes ndarray numpy numpy_extension op "
                "register utils",
                _INSIDE,
            ),
        },
        added={"NDArray.tensor": "the torch tensor beneath"},
    ),
    "mxnet.ndarray.sparse": Names(
        provided="RowSparseNDArray RowSparseNDArray.as_in_context RowSparseNDArray.asnumpy RowSparseNDArray.context "
        "RowSparseNDArray.copyto RowSparseNDArray.ctx RowSparseNDArray.data RowSparseNDArray.dtype "
        "RowSparseNDArray.indices RowSparseNDArray.shape RowSparseNDArray.size RowSparseNDArray.stype "
        "RowSparseNDArray.tostype zeros",
        mended={"row_sparse_array": "indices that do not rise or are out of range are an error"},
        approximated={"RowSparseNDArray.wait_to_read": "calls on the CPU are done when they return"},
        absent={
            **_all("CSRNDArray csr_matrix", "use scipy.sparse, or `torch.sparse_csr_tensor`"),
            **_all(f"add array divide dot empty multiply retain subtract {SPARSE}", _ARRAYS),
        },
        added={
            "RowSparseNDArray.coo": "as `torch.sparse_coo` tensor",
            "RowSparseNDArray.set": "hold other rows",
            "RowSparseNDArray.todense": "as dense array",
        },
    ),
    "mxnet.optimizer": Names(
        provided="Test Updater create get_updater",
        approximated={
            **_all(
                "AdaGrad Adam Optimizer SGD",
                "numbers are attributes by the names of their parameters; `learning_rate`, `wd`, `rescale_grad` and "
                "`clip_gradient` are common to all; schedulers, multipliers and `multi_precision` are not taken",
            ),
            "RMSProp": "as `SGD`, and without `centered`",
        },
        absent={
            **_all(
                "AdaDelta Adamax DCASGD FTML Ftrl LAMB LARS LBSGD NAG Nadam SGLD Signum ccSGD",
                _RULES,
            ),
            **_all("contrib", _RULES),
            "optimizer": _INSIDE,
            "register": "use `feedline.kvstore.register_optimizer`",
        },
    ),
    "mxnet.symbol": Names(
        provided="Activation BlockGrad CTCLoss Cast Concat Convolution Crop Deconvolution Dropout ElementWiseSum "
        "Embedding Flatten FullyConnected Group GroupNorm InstanceNorm L2Normalization LRN LayerNorm LeakyReLU "
        "LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput MakeLoss Pad Pooling Reshape "
        "SVMOutput SequenceLast SequenceMask SequenceReverse SliceChannel Softmax SoftmaxActivation "
        "SoftmaxOutput SwapAxis Symbol Symbol.astype Symbol.attr Symbol.attr_dict Symbol.eval Symbol.get_children "
        "Symbol.get_internals Symbol.infer_shape Symbol.infer_shape_partial Symbol.infer_type "
        "Symbol.list_arguments Symbol.list_attr Symbol.list_auxiliary_states Symbol.list_inputs "
        "Symbol.list_outputs Symbol.name Symbol.save Symbol.tojson UpSampling Variable abs activation add_n "
        "arange arccos arccosh arcsin arcsinh arctan arctanh argmax argmax_channel argmin argsort batch_dot "
        "batch_take broadcast_add broadcast_axes broadcast_axis broadcast_div broadcast_equal broadcast_greater "
        "broadcast_greater_equal broadcast_hypot broadcast_lesser broadcast_lesser_equal broadcast_like "
        "broadcast_logical_and broadcast_logical_or broadcast_logical_xor broadcast_maximum broadcast_minimum "
        "broadcast_minus broadcast_mod broadcast_mul broadcast_not_equal broadcast_plus broadcast_power "
        "broadcast_sub broadcast_to cast cbrt ceil clip concat contrib cos cosh crop ctc_loss degrees "
        "depth_to_space dot element_wise_sum elemwise_add elemwise_div elemwise_mul elemwise_sub erf erfinv exp "
        "expand_dims expm1 eye fix flatten flip floor full gamma gammaln gather_nd hard_sigmoid hypot identity "
        "load load_json log log10 log1p log2 log_softmax logical_not make_loss max max_axis maximum mean min "
        "min_axis minimum nanprod nansum negative norm one_hot ones ones_like pad pick pow power prod radians "
        "rcbrt reciprocal relu repeat reshape reshape_like reverse rint round rsqrt scatter_nd sigmoid sign sin "
        "sinh slice slice_axis slice_like smooth_l1 softmax softmax_cross_entropy softmin softsign sort "
        "space_to_depth split sqrt square squeeze stack stop_gradient sum sum_axis swapaxes take tan tanh tile "
        "transpose trunc var where zeros zeros_like",
        approximated={
            "BatchNorm": "running statistics move in `forward(is_train=True)` (MXNet: in `backward`)",
            "RNN": "without projections; with `p` above 0 torch draws what is dropped",
            "Symbol.bind": "`group2ctx` and `shared_exec` are taken and change nothing",
            "Symbol.simple_bind": "as `bind`; storage types and shared buffers change nothing",
            "topk": "with `ret_typ='both'` the places have the type of the values",
        },
        absent={
            **_all(
                "BilinearSampler Custom GridGenerator ROIPooling SpatialTransformer diag image khatri_rao linalg "
                f"linspace op random sample_multinomial shape_array size_array sparse {SYMBOLS}",
                _NETWORKS,
            ),
            **_all(
                "gen__internal gen_contrib gen_image gen_linalg gen_op gen_sparse numpy numpy_extension register "
                "symbol",
                _INSIDE,
            ),
        },
    ),
    "mxnet.symbol.contrib": Names(
        provided="AdaptiveAvgPooling2D BilinearResize2D CTCLoss ctc_loss",
        absent={
            **_all("DeformableConvolution DeformablePSROIPooling PSROIPooling SyncBatchNorm", _NETWORKS),
            **_all("MultiBoxDetection MultiBoxPrior MultiBoxTarget MultiProposal Proposal ROIAlign", _BOXES),
            **_all("bipartite_matching box_iou box_nms", _BOXES),
            **_all("cond foreach while_loop", "write the loop in Python around torch modules"),
            **_all("fft ifft", "use torch.fft"),
            **_all(CONTRIB, _NETWORKS),
        },
    ),
    "mxnet.visualization": Names(
        provided="plot_network",
        mended={
            "print_summary": "parameters are counted from their shapes, shared ones once (MXNet: from channels, wrong "
            "after a feature map and without shapes), all data variables are shown, and no network fails; "
            "`exact_mxnet=True` gives MXNet's text",
        },
    ),
}
