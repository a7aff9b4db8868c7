"""A data loader for torchtitan: texts and conversations, tokenized and packed as they are read.

Every rank plans the same global batches and takes its rows of them, so that a state is the same on all ranks, and fits
any data-parallel degree. A finite corpus ends on all ranks at the same step.
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from torchtitan.components.dataloader import BaseDataLoader

from feedline.data import Minibatch, Position, Stream
from feedline.errors import SchemaError, StateError
from feedline.feed.composed.packed import Packed
from feedline.feed.composed.texts.chat_template import ChatTemplate
from feedline.feed.composed.texts.library_tokenizer import library_tokenizer
from feedline.feed.composed.texts.tokenized import TOOLS, TRAINED, Tokenized
from feedline.feed.formats.detect import format_name
from feedline.feed.formats.jsonl import JSONLinesDeserializer
from feedline.feed.open_corpus import open_corpus
from feedline.feed.protocol import Deserializer, is_sized
from feedline.feed.remote.address_text import is_address
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import Window

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]

#: Label of a place without one, which torchtitan's losses leave out.
IGNORE = -100
_STATE, _TOKENS = "feedline", "tokens"

# A chunk is small, as the first batch waits for one or a window of them, and large enough that few rows have padding.
_BYTES_PER_TOKEN, _MIN_CHUNK = 128, 256 << 10


class FeedlineDataLoader(BaseDataLoader):
    """Batches of packed rows for torchtitan's trainer.

    A batch is ``({"input": tokens, "positions": positions}, labels)``, int64 tensors (local_batch_size, seq_len).
    Positions begin at 0 with each piece of a document. Labels are the next tokens of the same document, -100 where
    there is none, in padding, and in conversations outside the assistant's turns. The last batch of a finite corpus is
    filled up with rows of padding, so that no document is left out and all ranks get as many batches.

    Args:
        config: the settings.
        dp_world_size, dp_rank: data-parallel degree, and this rank.
        tokenizer: torchtitan's tokenizer.
        seq_len: tokens of a row.
        local_batch_size: rows of a batch of this rank.
        runtime: other arguments of torchtitan's loaders, which this one has no use for.

    Raises:
        DataError: the corpus, or the tokenizer, cannot be read.
        SchemaError: the corpus has no stream of texts, conversations or tokens, or several.
        ValueError: no ``dataset_path``, or a setting out of range.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Settings of `FeedlineDataLoader`.

        Attributes:
            dataset_path: files of any format, see `open_corpus`: a path, pattern or address. A stream of texts is
                tokenized, with the tokens of beginning and end that torchtitan's own loader adds. A stream of tokens is
                packed as it is.
            text: name of the stream of texts, or of tokens. None: the only one.
            messages: name of the stream of conversations, see `ChatTemplate`, which the template in the folder of the
                tokenizer turns into texts, with a stream ``tools`` if there is one. Those longer than a row are left
                out. None: texts.
            infinite: whether to begin another sweep, in another order, at the end of the data.
            shuffle: whether to shuffle.
            window: chunks that are shuffled together, and read before the first batch. None: 8, and fewer at first, see
                `Packed`.
            chunk_size: bytes of JSON Lines in a chunk, which is tokenized and packed together, and whose last row has
                padding. None: 128 for each token of a row, which makes about 32 rows of English, and at least 256 KiB.
            seed: seed of the order and of packing.
            on_error: ``"raise"`` or ``"skip"`` for unreadable records, see `MinibatchSource`.
        """

        text: str | None = None
        messages: str | None = None
        infinite: bool = True
        shuffle: bool = True
        window: int | None = None
        chunk_size: int | None = None
        seed: int = 0
        on_error: str = "raise"

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **runtime: Any,
    ) -> None:
        chunk_size = max(_BYTES_PER_TOKEN * seq_len, _MIN_CHUNK) if config.chunk_size is None else config.chunk_size
        corpus = _documents(config, tokenizer, chunk_size)
        self._masks = TRAINED in corpus.schema
        packed = Packed(
            corpus,
            seq_len,
            method="best-fit" if self._masks else "split",
            long="drop" if self._masks else "split",
            tokens=_TOKENS if _TOKENS in corpus.schema else config.text,
            ignore=IGNORE,
            seed=config.seed,
        )
        self._source = MinibatchSource(
            packed,
            seed=config.seed,
            shuffle=config.shuffle and (config.window is None or Window(chunks=config.window)),
            partition=(dp_rank, dp_world_size),
            max_sweeps=None if config.infinite else 1,
            on_error=config.on_error,
        )
        self._start = Position(window=None if is_sized(packed) else 0)
        self._tokens = next(iter(packed.schema))
        self._rows, self._row, self._size = local_batch_size, seq_len, local_batch_size * dp_world_size * seq_len
        self._ended = False

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from the current position. After the end of a finite corpus, begin again."""
        if self._ended:
            self._source.seek(self._start)
            self._ended = False
        while minibatch := self._source.next_minibatch(self._size):
            yield self._batch(minibatch)
        self._ended = True

    def _batch(self, minibatch: Minibatch) -> Batch:
        tokens = minibatch[self._tokens].torch(layout="packed").long()
        labels = minibatch["labels"].torch(layout="packed")
        if self._masks:
            labels = labels.masked_fill(~minibatch[TRAINED].torch(layout="packed"), IGNORE)
        missing = self._rows * self._row - len(tokens)
        bounds = minibatch["cu_seqlens"].torch(layout="packed").long()
        if missing:
            tokens, labels = pad(tokens, (0, missing)), pad(labels, (0, missing), value=IGNORE)
            bounds = torch.cat([bounds[:-1], torch.arange(len(tokens) - missing, len(tokens) + 1, self._row)])
        positions = torch.arange(len(tokens)) - bounds[:-1].repeat_interleave(bounds.diff())
        shape = (self._rows, self._row)
        return {"input": tokens.view(shape), "positions": positions.view(shape)}, labels.view(shape)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch, one text that is the same on all ranks."""
        return {_STATE: json.dumps(self._source.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue after the batch of a state, under any data-parallel degree and batch size.

        Args:
            state_dict: result of `state_dict`. An empty one changes nothing.

        Raises:
            StateError: it is of another loader, data or order.
        """
        if not state_dict:
            return
        if _STATE not in state_dict:
            raise StateError(
                f"expected a state of FeedlineDataLoader, got one with {', '.join(map(str, state_dict))}",
                hint="exclude the data loader from loading: checkpoint.exclude_from_loading = ['dataloader']",
            )
        self._source.load_state_dict(json.loads(state_dict[_STATE]))
        self._ended = False

    def close(self) -> None:
        """Close files, and stop threads."""
        self._source.close()


def _documents(config: FeedlineDataLoader.Config, tokenizer: Any, chunk_size: int) -> Deserializer:
    """Return the corpus of the documents' tokens."""
    path = config.dataset_path
    if not path:
        raise ValueError("expected dataset_path as a path, a pattern or an address, got none")
    if config.text is not None and config.messages is not None:
        raise ValueError(f"expected text or messages, got both: {config.text!r} and {config.messages!r}")
    corpus: Deserializer
    if not is_address(path) and format_name(path) == "jsonl":
        corpus = JSONLinesDeserializer(path, chunk_size=chunk_size)
    elif config.messages is not None:
        corpus = _conversations(path, config.messages)
    else:
        corpus = open_corpus(path)
    if config.messages is not None:
        return Tokenized(corpus, ChatTemplate(tokenizer.tokenizer_path), text=config.messages, tokens=_TOKENS)
    texts = [name for name, stream in corpus.schema.items() if stream.is_bytes]
    if texts if config.text is None else config.text in texts:
        return Tokenized(corpus, _Encoding(tokenizer), text=config.text, tokens=_TOKENS, dtype="int32")
    return corpus


def _conversations(path: str, messages: str) -> Deserializer:
    """Return a corpus of conversations, with their tools. Columns of structs are read as JSON.

    Raises:
        DataError, SchemaError: see `open_corpus`.
    """
    corpus, known = None, {}
    with warnings.catch_warnings(), contextlib.suppress(SchemaError):
        warnings.simplefilter("ignore", UserWarning)  # of columns that are not streams by themselves
        corpus = open_corpus(path)
        known = dict(corpus.schema)
    nested_tools = any(re.match(rf"{TOOLS}(\.|\[)", inner) for inner in getattr(corpus, "nested_paths", ()))
    if corpus is not None and messages in known and (TOOLS in known or not nested_tools):
        return corpus
    streams = {name: known.get(name, Stream(dtype="bytes")) for name in (messages, TOOLS)}
    try:
        return open_corpus(path, streams=streams)
    except SchemaError:  # there are no tools
        return open_corpus(path, streams={messages: streams[messages]})


class _Encoding:
    """A function from texts to tokens with those of beginning and end, as torchtitan's own loader adds them.

    Args:
        tokenizer: torchtitan's. One that wraps a tokenizer of the library encodes many texts at once.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._library = library_tokenizer(tokenizer.tokenizer) if hasattr(tokenizer, "hf_adds_bos") else None
        self._begin: list[int] = []
        self._end: list[int] = []
        if self._library is not None:
            self._begin = [] if tokenizer.hf_adds_bos or tokenizer.bos_id is None else [tokenizer.bos_id]
            self._end = [] if tokenizer.hf_adds_eos or tokenizer.eos_id is None else [tokenizer.eos_id]

    def __call__(self, texts: list[str]) -> list[list[int]]:
        """Return the tokens of each text."""
        if self._library is None:
            return [self._tokenizer.encode(text, add_bos=True, add_eos=True) for text in texts]
        return [[*self._begin, *encoding.ids, *self._end] for encoding in self._library.encode_batch_fast(texts)]
