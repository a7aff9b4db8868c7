"""`cntk.cntk_py`: the names of CNTK's bindings that scripts use.

Configurations of deserializers and sources are dictionaries, as CNTK passes them to its readers.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from feedline.cntk._bound_values import BoundValue
from feedline.cntk._names import names_of
from feedline.cntk._op_names import renaming
from feedline.cntk._seeds import seeds
from feedline.cntk.logging import TraceLevel
from feedline.cntk.logging._writer import ProgressWriter as ProgressWriter

__all__, __getattr__ = names_of(__name__)

DataType_Unknown, DataType_Float, DataType_Double = 0, 1, 2
DataType_Float16, DataType_Int8, DataType_Int16 = 4, 5, 6
StorageFormat_Dense, StorageFormat_SparseCSC = 0, 1
DeviceKind_CPU, DeviceKind_GPU = 0, 1

INFINITELY_REPEAT = 2**64 - 1
FULL_DATA_SWEEP = 2**64 - 2
WINDOW_IN_CHUNKS = 128

Value = BoundValue

_log = logging.getLogger("feedline")


class DictionaryValue:
    """A boxed value of a `Dictionary`, which unboxes it."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


class Dictionary(dict[str, Any]):
    """A dictionary with strings as keys."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        for key, value in (values or {}).items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise ValueError(f"expected a string as key, got {key!r}")
        super().__setitem__(key, value.value if isinstance(value, DictionaryValue) else value)

    def add(self, key: str, value: Any) -> None:
        """Set ``self[key] = value``."""
        self[key] = value


def ctf_deserializer(filename: str, streams: Iterable[Any]) -> Dictionary:
    """Return the configuration of a CTF reader, from `cntk.io.StreamConfiguration` objects.

    ``cacheIndex``, ``skipSequenceIds``, ``maxErrors`` and ``chunkSizeInBytes`` may be set on it before it is used.
    """
    inputs = {}
    for stream in streams:
        inputs[stream.m_stream_name] = Dictionary(
            {
                "dim": stream.m_dim,
                "format": "sparse" if stream.m_is_sparse else "dense",
                "definesMBSize": stream.m_defines_mb_size,
                "alias": stream.m_stream_alias or stream.m_stream_name,
            }
        )
    return Dictionary(
        {
            "type": "CNTKTextFormatDeserializer",
            "module": "CNTKTextFormatReader",
            "file": str(filename),
            "input": Dictionary(inputs),
        }
    )


class _Flag:
    """An optional bool, as in the bindings."""

    def __init__(self) -> None:
        self.value: bool | None = None

    def set(self, value: bool) -> None:
        """Set the value."""
        self.value = bool(value)


class MinibatchSourceConfig:
    """All settings of a minibatch source. `to_dictionary` checks them.

    Args:
        deserializers: configurations of deserializers.
        randomize: whether to shuffle. If not, both windows are 0.

    Attributes:
        max_samples, max_sweeps: limits of the source.
        randomization_window_in_chunks, randomization_window_in_samples: size of the window. At most one is set.
        randomization_seed: seed of the first sweep.
        trace_level: level, 0 to 2.
        is_frame_mode_enabled: whether sequences have one sample.
        truncation_length: samples per piece for truncated backpropagation. 0: no truncation.
        is_multithreaded: flag with ``set(bool)``. If unset, it depends on the deserializers.
    """

    def __init__(self, deserializers: Iterable[Any], randomize: bool = True) -> None:
        self.deserializers = list(deserializers)
        self.max_samples = self.max_sweeps = INFINITELY_REPEAT
        self.randomization_window_in_chunks = WINDOW_IN_CHUNKS if randomize else 0
        self.randomization_window_in_samples = 0
        self.randomization_seed = 0
        self.trace_level = int(TraceLevel.Warning)
        self.is_frame_mode_enabled = False
        self.truncation_length = 0
        self.is_multithreaded = _Flag()

    @property
    def randomizes(self) -> bool:
        """Return whether there is a window."""
        return bool(self.randomization_window_in_chunks or self.randomization_window_in_samples)

    def check(self) -> None:
        """Raise an error for contradictory settings.

        Raises:
            ValueError: no deserializer.
            RuntimeError: two limits, two windows, frame mode with truncation, or a limit of no samples.
        """
        if not self.deserializers:
            raise ValueError("expected at least one deserializer, got none")
        if self.max_samples != INFINITELY_REPEAT and self.max_sweeps != INFINITELY_REPEAT:
            raise RuntimeError(
                f"expected max_samples or max_sweeps, got both ({self.max_samples} and {self.max_sweeps})"
            )
        if self.max_samples == 0:
            raise RuntimeError("expected max_samples of at least 1, got 0")
        if self.randomization_window_in_chunks and self.randomization_window_in_samples:
            raise RuntimeError(
                "expected one randomization window, got one in chunks and one in samples; the one in chunks is "
                f"{WINDOW_IN_CHUNKS} by default: pass randomization_window_in_chunks=0"
            )
        if self.is_frame_mode_enabled and self.truncation_length:
            raise RuntimeError("expected frame mode or truncation, got both")


def to_dictionary(config: MinibatchSourceConfig) -> Dictionary:
    """Return the settings for CNTK's reader, or raise the errors of `MinibatchSourceConfig.check`."""
    config.check()
    truncated, in_samples = config.truncation_length > 0, config.randomization_window_in_samples > 0
    window = config.randomization_window_in_samples if in_samples else config.randomization_window_in_chunks
    settings: dict[str, Any] = {
        "frameMode": config.is_frame_mode_enabled,
        "traceLevel": int(config.trace_level),
        "multiThreadedDeserialization": bool(config.is_multithreaded.value),
        "deserializers": config.deserializers,
        "randomize": config.randomizes,
    }
    if config.randomizes:
        settings["randomizationWindow"] = window
        settings["sampleBasedRandomizationWindow"] = in_samples
        settings["randomizationSeed"] = config.randomization_seed
    if truncated:
        settings["truncated"] = True
        settings["truncationLength"] = config.truncation_length
    return Dictionary(settings)


def set_fixed_random_seed(value: int) -> None:
    """Initialize every later parameter from this seed, and seed torch's generators (for dropout) with it once."""
    seeds.fixed = int(value)
    importlib.import_module("torch").manual_seed(value)


def reset_random_seed(value: int = 0) -> None:
    """Unfix the seed. Parameters are initialized from this seed, the next seed, and so on."""
    seeds.reset(int(value))


def is_random_seed_fixed() -> bool:
    """Return whether all parameters are initialized from one seed."""
    return seeds.fixed is not None


def get_random_seed() -> int:
    """Return the seed of the next parameter."""
    return seeds.current()


def allow_renaming_functions() -> None:
    """Allow functions that have a name to get another by ``function.name = ...``, in this process."""
    renaming.allowed = True


def always_allow_setting_default_device() -> None:
    """Do nothing, as the default device can be changed at any time."""


def set_computation_network_trace_level(level: int) -> None:
    """Do nothing, as networks have no trace of single nodes. A level above 0 is logged."""
    if level > 0:
        _log.warning("trace level %s has no effect: use torch.autograd.set_detect_anomaly or torch.profiler", level)


def force_deterministic_algorithms() -> None:
    """Make torch use deterministic kernels, and warn where it has none."""
    importlib.import_module("torch").use_deterministic_algorithms(True, warn_only=True)
