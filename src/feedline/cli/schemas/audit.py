"""The JSON documents of ``feedline audit``."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class CorpusCount(TypedDict):
    """How often a corpus was read.

    Attributes:
        delivered: number of its sequences in these steps.
        sequences: number of sequences in the corpus.
        times: the former divided by the latter.
    """

    delivered: int
    sequences: int
    times: float


class SequenceSteps(TypedDict):
    """The steps that contain the sequence of ``--sequence``.

    Attributes:
        id: ordinal of the sequence.
        steps: numbers of the steps.
    """

    id: int
    steps: list[int]


class DocumentSteps(TypedDict):
    """The steps that contain the document of ``--document``.

    Attributes:
        id: the document, as typed.
        steps: numbers of the steps.
    """

    id: str
    steps: list[int]


class StepSequences(TypedDict):
    """The sequences of a step.

    Attributes:
        step: number of the step.
        samples: number of its samples, over all ranks.
        ids: ordinals of its sequences, in their order.
        sources: of a mixture, the corpus of each sequence.
        documents: of a packed corpus, the ordinals of the documents in each sequence.
    """

    step: int
    samples: int
    ids: list[int]
    sources: NotRequired[list[str]]
    documents: NotRequired[list[list[int]]]


class AuditDocument(TypedDict):
    """The steps of a run.

    Attributes:
        log: path of the log.
        path: path of the corpus.
        first_step: number of the first step.
        steps: number of steps.
        sources: by corpus of a mixture, or of the corpus, how often it was read.
        sequence: with ``--sequence``, the steps that contain it.
        document: with ``--document``, the steps that contain it.
        listed: with ``--steps``, the sequences of each step.
    """

    log: str
    path: str
    first_step: int
    steps: int
    sources: dict[str, CorpusCount]
    sequence: NotRequired[SequenceSteps]
    document: NotRequired[DocumentSteps]
    listed: NotRequired[list[StepSequences]]


Document = AuditDocument
