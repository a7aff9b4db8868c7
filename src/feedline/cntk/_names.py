"""The names of CNTK 2.7, and what of them is here; docs/compat/cntk.md is made from this.

Modules ask it what to say of a name they lack. A test holds it against the modules: what it calls provided is there,
what it calls absent is not, and nothing public is missing from it.
"""

from __future__ import annotations

from feedline import _facades
from feedline._facades import Names
from feedline._facades import alike as _all
from feedline.cntk._network_names import NETWORKS, TORCH

_IMAGES = "decode in `transforms=` of `fl.MinibatchSource` over a store or Parquet, or write a `fl.UserDeserializer`"
_SPEECH = "write features as arrays or a store, or write a `fl.UserDeserializer`"


def explain(module: str, name: str) -> Exception:
    """The error for a name that ``module`` lacks."""
    return _facades.explain(NAMES, module, name)


_MOMENTUM = "a negative time constant is refused by learners, as a momentum above 1"
_UNIT_GAIN = "kept and handed back: as in CNTK, learners made without `unit_gain` have unit gain all the same"
_OWN_RULE = "gets torch tensors or NumPy arrays, and changes parameters in place; what it learned from is counted"
_HELPER = "a helper of CNTK's own code: convert arguments in the script"
_OWN_CRITERION = "no criterion of its own: the trainer's metric is used"

NAMES: dict[str, Names] = {
    "cntk": Names(
        provided="Axis Constant DeviceDescriptor DeviceKind Evaluator FreeDimension INFINITELY_REPEAT "
        "InferredDimension MinibatchData NDArrayView Parameter Value Variable all_devices asarray asvalue axis "
        "cntk_py core cpu debugging device eval get_gpu_properties gpu initializer io layers learners logging losses "
        "metrics ops random sequence set_default_device set_excluded_devices train try_set_default_device "
        "use_default_device variables",
        absent={
            "ModelFormat": "functions are saved as safetensors, with the graph as JSON",
            "cntk_library_path": "there is no library of CNTK's here",
            "misc": "use torch's tools on `function.network()`",
            **_all("install_samples sample_installer", "CNTK's examples are in its repository"),
            **_all("evaluator functions internal tensor trainer utils", "import the class or function from `cntk`"),
            **_all(
                "associative_multi_arg auto_select cntk_py_init data_type_to_dtype get_data_type map_if_possible "
                "sanitize_axis sanitize_axis_list sanitize_batch sanitize_convolution_args sanitize_dtype_cntk "
                "sanitize_dynamic_axes sanitize_function sanitize_input sanitize_multi_axis_reduction_list "
                "sanitize_permutation sanitize_pooling_args sanitize_shape sanitize_var_map typemap",
                _HELPER,
            ),
            **_all(
                "cosine_distance_with_negative_samples edit_distance_error fmeasure hierarchical_softmax_layer "
                "lambda_rank lattice_sequence_with_softmax nce_loss ndcg_at_1",
                TORCH,
            ),
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
        "MinibatchSourceConfig.truncation_length ProgressWriter ProgressWriter.on_training_update_end "
        "ProgressWriter.on_write_distributed_sync_update ProgressWriter.on_write_test_summary "
        "ProgressWriter.on_write_test_update ProgressWriter.on_write_training_summary "
        "ProgressWriter.on_write_training_update ProgressWriter.total_test_updates "
        "ProgressWriter.total_training_updates ProgressWriter.update_distributed_sync ProgressWriter.update_test "
        "ProgressWriter.update_training ProgressWriter.write ProgressWriter.write_test_summary "
        "ProgressWriter.write_training_summary StorageFormat_Dense StorageFormat_SparseCSC ctf_deserializer "
        "to_dictionary",
        approximated={
            "force_deterministic_algorithms": "torch's deterministic kernels, with a warning where there is none",
            **_all(
                "get_random_seed is_random_seed_fixed reset_random_seed set_fixed_random_seed",
                "seeds are given out as in CNTK, the numbers made of them are torch's; dropout and `cntk.random` draw "
                "from torch's generators, which `set_fixed_random_seed` seeds once",
            ),
        },
        absent={
            "create_composite_minibatch_source": "use cntk.io.MinibatchSource",
            **_all(
                "CheckpointConfig CrossValidationConfig DeviceDescriptor Function Learner MinibatchData NDShape "
                "TestConfig Trainer TrainingSession Value Variable",
                "use the class of the same name in cntk",
            ),
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
        absent={"user_function": "it is `cntk.user_function`"},
        added={
            "Value.lanes": "which lane delivers each piece, under truncation",
            "Value.of": "over a `feedline.Value`",
            "Value.over": "as the constructor, without copying arrays",
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
    "cntk.learners": Names(
        provided="IGNORE Learner Learner.is_compatible_mode Learner.learning_rate Learner.minibatch_size "
        "Learner.parameters Learner.reset_learning_rate Learner.total_number_of_samples_seen Learner.update UnitType "
        "adadelta adagrad adam default_unit_gain_value fsadagrad learning_parameter_schedule "
        "learning_parameter_schedule_per_sample learning_rate_schedule momentum_schedule momentum_schedule_per_sample "
        "momentum_sgd nesterov rmsprop sgd training_parameter_schedule universal",
        approximated={
            "UserLearner": _OWN_RULE,
            "UserLearner.update": _OWN_RULE,
            "momentum_as_time_constant_schedule": _MOMENTUM,
            "set_default_unit_gain_value": _UNIT_GAIN,
        },
        added={
            "Learner.changed": "numbers that progress writers were not told yet",
            "Learner.modern": "the `feedline.train.Learner` beneath",
        },
    ),
    "cntk.debugging": Names(
        approximated={
            **_all("dump_function dump_signature", "the text is feedline's"),
            "force_deterministic": "as `cntk_py.set_fixed_random_seed` and `cntk_py.force_deterministic_algorithms`",
        },
        absent={
            "DEBUG_USAGE": "use Python's debugger in a `UserFunction`",
            "debug": "use Python's debugger in a `UserFunction`",
            "profiler": "use torch.profiler",
            **_all("debug_model save_as_legacy_model", "look at `function.network()` with torch's tools"),
            **_all(
                "start_profiler stop_profiler enable_profiler disable_profiler",
                "use torch.profiler, and `source.stats()` for the feed",
            ),
            **_all(
                "set_checked_mode get_checked_mode set_computation_network_trace_level set_node_timing",
                "use torch.autograd.set_detect_anomaly",
            ),
        },
    ),
    "cntk.logging": Names(
        provided="graph",
        approximated=_all(
            "TraceLevel get_trace_level set_trace_level", "kept and handed back; nothing is printed by it"
        ),
    ),
    "cntk.logging.graph": Names(
        approximated={
            **_all(
                "depth_first_search find_all_with_name find_by_name find_by_uid get_node_outputs",
                "`depth` is not looked at: blocks are open",
            ),
            "plot": "the picture is `feedline.plot_network`'s, with blocks as boxes",
        },
    ),
    "cntk.logging.progress_print": Names(
        provided="ProgressPrinter TrainingSummaryProgressCallback log_number_of_parameters "
        "ProgressPrinter.end_progress_print ProgressPrinter.epoch_summary ProgressPrinter.log "
        "ProgressPrinter.on_training_update_end ProgressPrinter.on_write_distributed_sync_update "
        "ProgressPrinter.on_write_test_summary ProgressPrinter.on_write_test_update "
        "ProgressPrinter.on_write_training_summary ProgressPrinter.on_write_training_update ProgressPrinter.update "
        "ProgressPrinter.update_with_trainer ProgressPrinter.write TensorBoardProgressWriter.close "
        "TensorBoardProgressWriter.flush TensorBoardProgressWriter.on_write_test_summary "
        "TensorBoardProgressWriter.on_write_training_summary TensorBoardProgressWriter.on_write_training_update "
        "TensorBoardProgressWriter.write TensorBoardProgressWriter.write_image TensorBoardProgressWriter.write_value "
        "TrainingSummaryProgressCallback.on_write_training_summary",
        approximated={"TensorBoardProgressWriter": "without the graph of `model`"},
    ),
    "cntk.train": Names(
        provided="CheckpointConfig Communicator DataUnit DistributedLearner Trainer TrainingSession WorkerDescriptor "
        "block_momentum_distributed_learner data_parallel_distributed_learner distributed minibatch_size_schedule "
        "mpi_communicator training_session",
        approximated=_all("CrossValidationConfig TestConfig", _OWN_CRITERION),
    ),
    "cntk.train.distributed": Names(
        provided="Communicator Communicator.barrier Communicator.current_worker Communicator.finalize "
        "Communicator.is_main Communicator.num_workers Communicator.rank Communicator.workers DistributedLearner "
        "DistributedLearner.communicator DistributedLearner.total_number_of_samples_seen WorkerDescriptor "
        "WorkerDescriptor.global_rank WorkerDescriptor.host_id",
        mended={
            "block_momentum_distributed_learner": "models are equal on all workers behind each block (CNTK: they "
            "differ where workers have seen different numbers of samples)",
        },
        approximated={
            "data_parallel_distributed_learner": "1 to 16 bits, or 32; workers are started by torchrun, not mpiexec",
            "mpi_communicator": "torch.distributed, not MPI",
        },
    ),
    "cntk.train.trainer": Names(
        provided="Trainer.evaluation_function Trainer.loss_function Trainer.parameter_learners "
        "Trainer.previous_minibatch_evaluation_average Trainer.previous_minibatch_loss_average "
        "Trainer.previous_minibatch_sample_count Trainer.summarize_test_progress Trainer.summarize_training_progress "
        "Trainer.test_minibatch Trainer.total_number_of_samples_seen",
        mended={
            "Trainer.save_checkpoint": "killed at any instant, there is a whole checkpoint (CNTK: none, if it is "
            "killed between its two renames)",
        },
        approximated={
            "Trainer": "the model is a `torch.nn.Module` and the criterion are functions of its output and of the "
            "minibatch; they get a mapping from the script's keys to `feedline.Value`",
            "Trainer.model": "the function, or the `torch.nn.Module`",
            "Trainer.print_node_timing": "refused: use torch.profiler",
            "Trainer.restore_from_checkpoint": "reads feedline's files (safetensors), not CNTK's; Python's and NumPy's "
            "random generators go on from there too",
            "Trainer.train_minibatch": "`device` is where the model is; a learner of rate 0 "
            "counts what others learn from (CNTK: its clock stands still)",
        },
        added={
            "Trainer.modern": "the `feedline.train.Trainer` beneath",
            "Trainer.test": "as `test_minibatch`, with sums and samples",
        },
    ),
    "cntk.train.training_session": Names(
        provided="CheckpointConfig DataUnit TrainingSession.on_checkpoint_end TrainingSession.on_checkpoint_start "
        "TrainingSession.on_cross_validation_end TrainingSession.on_minibatch_end TrainingSession.on_minibatch_start "
        "minibatch_size_schedule training_session",
        mended={
            "TrainingSession": "cross validation leaves the training source alone (CNTK: under truncation it loses "
            "half-delivered sequences)",
            "TrainingSession.train": "goes on from the newest checkpoint, that of most samples; with `preserve_all` "
            "the file without a number is always the last one (CNTK: it is the end of the first run for ever, and "
            "later runs go on from there)",
        },
        approximated=_all("CrossValidationConfig TestConfig", _OWN_CRITERION),
    ),
}


def _repeat(package: str, *modules: str) -> None:
    """Add the names of modules that their package repeats; members of classes stand with the module alone."""
    parts = [NAMES[package], *(NAMES[f"cntk.{module}"] for module in modules)]
    provided = {name for names in parts for name in names.provided.split() if "." not in name or names is parts[0]}
    NAMES[package] = Names(
        " ".join(sorted(provided)), *(_tops(parts, key) for key in ("mended", "approximated", "absent", "added"))
    )


def _tops(parts: list[Names], key: str) -> dict[str, str]:
    own, *others = (getattr(names, key) for names in parts)
    return {**{name: said for more in others for name, said in more.items() if "." not in name}, **own}


NAMES |= NETWORKS
_repeat(
    "cntk.layers",
    *(f"layers.{name}" for name in ["blocks", "higher_order_layers", "layers", "models", "sequence", "typing"]),
)
_repeat("cntk.logging", "logging.graph", "logging.progress_print")
_repeat("cntk", "default_options", "initializer", "learners", "ops", "train")
