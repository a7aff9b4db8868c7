"""The names of CNTK 2.7, and what of them is here; docs/compat/cntk.md is made from this.

Modules ask it what to say of a name they lack. A test holds it against the modules: what it calls provided is there,
what it calls absent is not, and nothing public is missing from it.
"""

from __future__ import annotations

from feedline import _facades
from feedline._facades import Names
from feedline._facades import alike as _all

_NETWORKS = "write the model in torch.nn and feed it with `value.packed.torch()`"
_TRAINING = "write the training loop in torch over next_minibatch, or use feedline's own trainer where there is one"
_IMAGES = "decode in `transforms=` of `fl.MinibatchSource` over a store or Parquet, or write a `fl.UserDeserializer`"
_SPEECH = "write features as arrays or a store, or write a `fl.UserDeserializer`"


def explain(module: str, name: str) -> Exception:
    """The error for a name that ``module`` lacks."""
    return _facades.explain(NAMES, module, name)


NAMES: dict[str, Names] = {
    "cntk": Names(
        provided="Axis DataUnit DeviceDescriptor DeviceKind NDArrayView Value all_devices asarray asvalue axis cntk_py "
        "core cpu device get_gpu_properties gpu io logging set_default_device set_excluded_devices train "
        "try_set_default_device use_default_device variables",
        absent={
            **_all(
                "Constant Function Parameter Variable combine default_options default_override_options eval "
                "initializer input_variable layers load_model losses metrics misc ops placeholder random sequence",
                _NETWORKS,
            ),
            **_all(
                "CheckpointConfig CrossValidationConfig Evaluator TestConfig Trainer TrainingSession UnitType adadelta "
                "adagrad adam distributed fsadagrad learners learning_parameter_schedule learning_rate_schedule "
                "minibatch_size_schedule momentum_schedule momentum_sgd nesterov rmsprop sgd training_session "
                "universal",
                _TRAINING,
            ),
            "debugging": "use torch's profiler, and `source.stats()` for the feed",
            "user_function": _NETWORKS,
        },
        added={"install": "make `import cntk` mean this façade in this process"},
    ),
    "cntk.axis": Names(
        provided="Axis Axis.all_axes Axis.all_static_axes Axis.default_batch_axis Axis.default_dynamic_axis "
        "Axis.default_input_variable_dynamic_axes Axis.end_static_axis Axis.is_batch_axis Axis.is_ordered "
        "Axis.is_sequence_axis Axis.is_static_axis Axis.name Axis.new_leading_axis Axis.new_unique_dynamic_axis "
        "Axis.static_axis_index Axis.unknown_dynamic_axes",
    ),
    "cntk.cntk_py": Names(
        provided="DataType_Double DataType_Float DataType_Float16 DataType_Int16 DataType_Int8 DataType_Unknown "
        "DeviceKind_CPU DeviceKind_GPU Dictionary Dictionary.add DictionaryValue DictionaryValue.value "
        "MinibatchSourceConfig MinibatchSourceConfig.is_frame_mode_enabled MinibatchSourceConfig.is_multithreaded "
        "MinibatchSourceConfig.max_samples MinibatchSourceConfig.max_sweeps "
        "MinibatchSourceConfig.randomization_seed MinibatchSourceConfig.randomization_window_in_chunks "
        "MinibatchSourceConfig.randomization_window_in_samples MinibatchSourceConfig.trace_level "
        "MinibatchSourceConfig.truncation_length StorageFormat_Dense StorageFormat_SparseCSC ctf_deserializer "
        "to_dictionary",
        approximated={
            "force_deterministic_algorithms": "torch's deterministic kernels, with a warning where there is none",
            "set_fixed_random_seed": "seeds torch; the numbers are torch's, not CNTK's",
        },
        absent={
            "create_composite_minibatch_source": "use cntk.io.MinibatchSource",
            **_all(
                "DeviceDescriptor Function MinibatchData NDShape Value Variable",
                "use the class of the same name in cntk",
            ),
            **_all("CheckpointConfig CrossValidationConfig ProgressWriter TestConfig TrainingSession", _TRAINING),
        },
        added={
            "MinibatchSourceConfig.check": "what `to_dictionary` refuses",
            "MinibatchSourceConfig.deserializers": "as given",
            "MinibatchSourceConfig.randomizes": "whether there is a window",
        },
    ),
    "cntk.core": Names(
        provided="NDArrayView NDArrayView.asarray NDArrayView.device NDArrayView.dtype NDArrayView.from_csr "
        "NDArrayView.from_data NDArrayView.from_dense NDArrayView.is_read_only NDArrayView.is_sparse NDArrayView.shape "
        "NDArrayView.slice_view Value Value.ONE_HOT_SKIP Value.as_sequences Value.create Value.data Value.deep_clone "
        "Value.dtype Value.erase Value.is_read_only Value.is_sparse Value.mask Value.shape asvalue",
        mended={
            "Value.asarray": "looking at data never disturbs the minibatches that follow (CNTK: `Resize: Cannot resize "
            "the matrix because it is a view`)",
            "asarray": "returns the array without a `dtype` too",
        },
        approximated={
            "Value.device": "where data is wanted; it stays in host memory until a model takes it",
            "Value.one_hot": "`num_classes` is a number or a shape of one axis",
        },
        absent={"user_function": _NETWORKS},
        added={
            "Value.lanes": "which lane delivers each piece, under truncation",
            "Value.of": "over a `feedline.Value`",
            "Value.packed": "the `feedline.Value`",
        },
    ),
    "cntk.device": Names(
        provided="DeviceDescriptor DeviceDescriptor.id DeviceDescriptor.type DeviceKind all_devices cpu gpu "
        "set_default_device set_excluded_devices",
        approximated={
            "DeviceDescriptor.is_locked": "False: no device is locked",
            "get_gpu_properties": "what torch knows: no number of CUDA cores",
            "try_set_default_device": "`acquire_device_lock=True` is refused for a GPU",
            "use_default_device": "the first GPU that torch sees, not the least busy one",
        },
        added={
            "DeviceDescriptor.label": "its name in `repr`",
            "DeviceDescriptor.torch": "the `torch.device`",
            "intended_device": "the default without fixing it",
        },
    ),
    "cntk.io": Names(
        provided="DEFAULT_RANDOMIZATION_WINDOW_IN_CHUNKS FULL_DATA_SWEEP INFINITELY_REPEAT MinibatchData "
        "MinibatchData.data MinibatchData.end_of_sweep MinibatchData.is_sparse MinibatchData.mask "
        "MinibatchData.num_samples MinibatchData.num_sequences MinibatchData.number_of_samples "
        "MinibatchData.number_of_sequences MinibatchData.shape MinibatchData.sweep_end MinibatchData.value "
        "MinibatchSource.current_position MinibatchSource.is_infinite MinibatchSource.stream_info "
        "MinibatchSource.stream_infos MinibatchSource.streams MinibatchSourceFromData.get_checkpoint_state "
        "MinibatchSourceFromData.restore_from_checkpoint MinibatchSourceFromData.stream_infos StreamConfiguration "
        "StreamDef StreamDefs StreamInformation StreamInformation.name TraceLevel UserDeserializer.get_chunk "
        "UserDeserializer.num_chunks UserDeserializer.stream_infos UserMinibatchSource "
        "UserMinibatchSource.get_checkpoint_state UserMinibatchSource.is_infinite UserMinibatchSource.next_minibatch "
        "UserMinibatchSource.restore_from_checkpoint UserMinibatchSource.stream_info UserMinibatchSource.stream_infos "
        "UserMinibatchSource.streams sequence_to_cntk_text_format transforms",
        mended={
            "MinibatchData.as_sequences": "any minibatch may be looked at, cut sequences too, and a larger one asked "
            "for afterwards",
            "MinibatchData.asarray": "as `as_sequences`",
            "MinibatchSource": "`max_errors` reaches the text readers (CNTK: ignored)",
            "MinibatchSource.get_checkpoint_state": "under truncation the half-delivered sequences are in it, under "
            "the key `feedline` (CNTK: lost)",
            "MinibatchSource.restore_from_checkpoint": "the order that follows is that of the run that never stopped, "
            "for every seed (CNTK: another one unless the seed is 0); a fresh source over a `UserDeserializer` may be "
            "restored (CNTK: the process dies)",
            "MinibatchSourceFromData": "element types that CNTK refuses at the first minibatch are refused here",
            "MinibatchSourceFromData.is_infinite": "True without `max_samples` (CNTK: False, and a session never ends)",
            "MinibatchSourceFromData.next_minibatch": "a sequence longer than the size comes alone, a sparse minibatch "
            "may be all zeros, workers count their own part and stay within the minibatch (CNTK: errors, wrong counts, "
            "rows of the next minibatch)",
        },
        approximated={
            "CTFDeserializer": "errors say line, stream and reason; numbers are rounded correctly; options other than "
            "`cacheIndex`, `skipSequenceIds`, `maxErrors` and `chunkSizeInBytes` are refused; the index is "
            "feedline's",
            "MinibatchSource.next_minibatch": "sizes from 2**31 are refused without an end; the dictionary of the call "
            "before is not cleared; a worker gets `{}` only at the end, or where it owns "
            "nothing in a whole sweep; under truncation each piece is a row of its own, and sparse data stays sparse",
            "UserDeserializer": "randomized, the order is feedline's, in windows of chunks that never cross a sweep; "
            "several workers get every sequence once (CNTK: the process dies)",
        },
        absent={
            "Base64ImageDeserializer": _IMAGES,
            "CBFDeserializer": "read the text that it was made from, or convert that to a store: `feedline convert`",
            "HTKFeatureDeserializer": _SPEECH,
            "HTKMLFBinaryDeserializer": _SPEECH,
            "HTKMLFDeserializer": _SPEECH,
            "ImageDeserializer": _IMAGES,
            "LatticeDeserializer": _SPEECH,
        },
        added={
            "MinibatchSource.feed": "the `feedline.MinibatchSource` beneath",
            "MinibatchSource.reset": "to the start of the next sweep; older scripts call it",
            "MinibatchSourceFromData.feed": "as `MinibatchSource.feed`",
            "StreamInformation.is_sparse": "whether samples are sparse",
            "StreamInformation.of": "from a `feedline.Stream`",
            "StreamInformation.size": "samples of the stream in a sweep; older scripts call it",
            "StreamInformation.stream": "the `feedline.Stream`",
            "UserFeed": "a `UserMinibatchSource` as a feedline feed",
            "UserFeed.get_checkpoint_state": "of the source",
            "UserFeed.make_minibatch": "of the source",
            "UserFeed.restore_from_checkpoint": "of the source",
            "UserFeed.streams": "of the source",
        },
    ),
    "cntk.io.transforms": Names(
        approximated=_all("color crop mean scale", "a description, without a reader that takes it"),
    ),
    "cntk.logging": Names(
        approximated=_all(
            "TraceLevel get_trace_level set_trace_level", "kept and handed back; nothing is printed by it"
        ),
        absent=_all(
            "ProgressPrinter TensorBoardProgressWriter TrainingSummaryProgressCallback log_number_of_parameters",
            _TRAINING,
        ),
    ),
    "cntk.train": Names(
        provided="DataUnit",
        absent=_all(
            "CheckpointConfig CrossValidationConfig TestConfig Trainer TrainingSession minibatch_size_schedule",
            _TRAINING,
        ),
    ),
    "cntk.train.training_session": Names(
        provided="DataUnit",
        absent=_all(
            "CheckpointConfig CrossValidationConfig TestConfig TrainingSession minibatch_size_schedule "
            "training_session",
            _TRAINING,
        ),
    ),
    "cntk.variables": Names(
        provided="Record Record.updated_with",
        absent=_all("Constant Parameter Variable", _NETWORKS),
    ),
}
