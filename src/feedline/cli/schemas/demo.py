"""The JSON documents of ``feedline demo``."""

from __future__ import annotations

from typing import Any, TypedDict

from feedline_demo.run import Settings


class WordCounts(TypedDict):
    """The words.

    Attributes:
        train_words: number of words to train on.
        held_out_words: number of words to measure the accuracy on.
        letters: number of letters to train on.
        bytes: bytes of the text to train on.
        chunks: number of chunks of this text.
    """

    train_words: int
    held_out_words: int
    letters: int
    bytes: int
    chunks: int


class Losses(TypedDict):
    """Pairs of the number of samples and the mean loss of the minibatch.

    Attributes:
        killed: of the run that was killed.
        resumed: of the resumed run.
    """

    killed: list[tuple[int, float]]
    resumed: list[tuple[int, float]]


class PhaseSpeed(TypedDict):
    """A run.

    Attributes:
        steps: number of minibatches, from the start.
        samples: number of samples, from the start.
        words: number of words in this process.
        seconds: seconds of training.
        words_per_second: words per second.
        data_share: share of the time in which it waited for data, 0 to 1.
        peak_bytes: maximum of the bytes of chunks in memory.
    """

    steps: int
    samples: int
    words: int
    seconds: float
    words_per_second: float
    data_share: float
    peak_bytes: int


class ResumedPhase(PhaseSpeed):
    """The resumed run.

    Attributes:
        steps: number of minibatches, from the start.
        samples: number of samples, from the start.
        words: number of words in its first process.
        seconds: seconds of training.
        words_per_second: words per second.
        data_share: share of the time in which it waited for data, 0 to 1.
        peak_bytes: maximum of the bytes of chunks in memory.
        checkpoint_samples: number of samples at the checkpoint.
        checkpoint_words: number of words at the checkpoint.
        accuracy: share of the held-out words that are right, 0 to 1.
        states: state of the source of each rank at the end.
        peak_bytes_by_worker: maximum of the bytes of chunks in memory, by rank.
    """

    checkpoint_samples: int
    checkpoint_words: int
    accuracy: float
    states: list[dict[str, Any]]
    peak_bytes_by_worker: list[int]


class StreamProof(TypedDict):
    """The interrupted stream, compared with an uninterrupted one.

    Attributes:
        sequences_before: number of sequences before the kill.
        sequences: number of sequences of the interrupted stream.
        sequences_uninterrupted: number of sequences of the uninterrupted stream.
        fingerprint: fingerprints of the order of all ranks, where they differ joined by commas.
        fingerprint_uninterrupted: fingerprint of the order of the uninterrupted stream.
        digest: digest of the bytes that were delivered.
        digest_uninterrupted: digest of the bytes of the uninterrupted stream.
        states_equal: whether all ranks ended with the same state.
        identical: whether all of these agree.
    """

    sequences_before: int
    sequences: int
    sequences_uninterrupted: int
    fingerprint: str
    fingerprint_uninterrupted: str
    digest: str
    digest_uninterrupted: str
    states_equal: bool
    identical: bool


class ParameterAgreement(TypedDict):
    """The parameters of several ranks, compared with the parameters of a single rank.

    Attributes:
        workers_equal: whether all ranks have the same parameters, bit for bit.
        difference: largest difference from the parameters of a single rank.
        tolerance: largest difference that is accepted.
        largest_parameter: largest absolute value of a parameter.
        agrees: whether the ranks are equal and the difference is accepted.
    """

    workers_equal: bool
    difference: float
    tolerance: float
    largest_parameter: float
    agrees: bool


class LargeFile(TypedDict):
    """The feed of a file that is larger than its window.

    Attributes:
        stored_bytes: bytes of the file.
        sequences: number of sequences in the file.
        seconds: seconds of feeding.
        samples: number of samples that were fed.
        fed_bytes: bytes of the file that were fed.
        resident_before: share of the file that stayed in the page cache, 0 to 1. None if the system does not tell.
        disk_bytes_per_second: bytes per second of the disk. None if the file system has no direct I/O.
        share_of_disk: speed of the feed divided by the speed of the disk. None likewise.
        base_bytes: bytes of private memory before the file was opened. None, as the next three, if the system does not
            tell.
        peak_bytes: maximum of the bytes of private memory since.
        growth_bytes: the difference of both.
        file_backed_bytes: bytes of mapped files in memory at the end.
        held_peak_bytes: maximum of the bytes of chunks in memory.
    """

    stored_bytes: int
    sequences: int
    seconds: float
    samples: int
    fed_bytes: int
    resident_before: float | None
    disk_bytes_per_second: float | None
    share_of_disk: float | None
    base_bytes: int | None
    peak_bytes: int | None
    growth_bytes: int | None
    file_backed_bytes: int | None
    held_peak_bytes: int


class DemoDocument(TypedDict):
    """The result. If streams or parameters differ, the exit code is 1.

    Attributes:
        settings: sizes of the demo.
        corpus: the words.
        losses: losses of both runs.
        killed: the run that was killed.
        resumed: the resumed run.
        proof: comparison of the streams.
        agreement: comparison of the parameters.
        large: feed of a large file. None without one.
        seconds: wall time of everything, in seconds.
    """

    settings: Settings
    corpus: WordCounts
    losses: Losses
    killed: PhaseSpeed
    resumed: ResumedPhase
    proof: StreamProof
    agreement: ParameterAgreement
    large: LargeFile | None
    seconds: float


Document = DemoDocument
