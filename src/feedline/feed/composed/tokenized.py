"""A corpus of the tokens of texts, which reading tokenizes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import BytesValue
from feedline.errors import DataError, SchemaError, install_line
from feedline.feed.files.paths import open_regular
from feedline.feed.protocol import ChunkInfo, Deserializer, Ordered, Unsized, num_chunks

Tokenizer = Callable[[list[str]], Sequence[Sequence[int]]]

# Bytes of text that are tokenized together: enough for all cores, as the tokens of a batch take ten times its memory.
_AT_A_TIME = 1 << 20

# Texts whose tokens distinguish functions: scripts, cases, blanks, numbers, code, and the empty text.
_SAMPLES = (
    "The quick brown fox, 3 of them; jumped over (at least) 12,345.67 lazy dogs!",
    "Änderungen über Nacht: ÉCOLE, smørrebrød, naïve façade, straße",
    "Съешь же ещё этих мягких булок",
    "我能吞下玻璃而不伤身体。日本語のテキスト、한국어 문장",
    "صباح الخير \U0001f642\u200d\U0001f525",
    "def f(x):\n\treturn {'a': [x ** 2, None]}  # why\r\n",
    "  https://example.org/a_b?c=d&e=%20f  <end> </s> <|endoftext|> [CLS] ",
    "a",
    "",
)


class Tokenized(Deserializer, Unsized):
    """A corpus whose texts are replaced by their tokens, one sequence each.

    The number of tokens of a text is unknown before reading. A `MinibatchSource` reads this corpus, and `Packed` packs
    it, as it is. `convert` writes it to a store, which everything else accepts, too.

    Args:
        corpus: corpus with a stream of texts, one to a sequence.
        tokenizer: path of a ``tokenizer.json``, or a `tokenizers.Tokenizer`, without its truncation and padding. Or a
            function from a list of texts to one list of token ids each, the same in every call. Its identity is its
            name and its tokens for some texts, for which the constructor calls it.
        text: name of the stream of texts. None: the only one.
        tokens: name of the stream of tokens.
        append: token, or its id, to append to every text. None: no token.
        special: whether the tokenizer adds its special tokens to every text.
        keep: names of other streams to keep.
        dtype: dtype of the tokens. None: uint16 if the vocabulary allows, otherwise int32. Required for a function.

    Raises:
        DataError: the tokenizer cannot be read.
        ModuleNotFoundError: the library tokenizers is not installed.
        SchemaError: there is no such stream, or it holds no texts.
        TypeError, ValueError: an argument is of a wrong kind, or out of range, or the corpus is a mixture or has
            its own order.
    """

    def __init__(
        self,
        corpus: Deserializer,
        tokenizer: str | os.PathLike[str] | Tokenizer | Any,
        *,
        text: str | None = None,
        tokens: str = "tokens",
        append: str | int | None = None,
        special: bool = False,
        keep: Sequence[str] = (),
        dtype: DTypeLike | None = None,
    ) -> None:
        if corpus.capability(Ordered) is not None:
            raise ValueError(
                f"expected a corpus without an order of its own, got {corpus.name}: tokenize its parts, and mix them"
            )
        self._corpus, self._text = corpus, _text_of(corpus, text)
        self._tokens, self._keep, self.name = tokens, tuple(keep), corpus.name
        if isinstance(keep, str) or any(name not in corpus.schema for name in keep):
            raise SchemaError(f"expected keep as a list of {', '.join(corpus.schema)}, got {keep!r}")
        if tokens in self._keep:
            raise SchemaError(f"expected another name than `{tokens}` for tokens, as a stream of that name is kept")
        largest: int | None = None
        if callable(tokenizer) and not hasattr(tokenizer, "encode_batch"):
            if dtype is None or isinstance(append, str) or special:
                raise ValueError("expected dtype, append as an id and no special tokens for a function as tokenizer")
            self._encode: Tokenizer = tokenizer
            identity = _identity(tokenizer)
        else:
            library = _library_tokenizer(tokenizer)
            largest = max(library.get_vocab(with_added_tokens=True).values(), default=0)
            if isinstance(append, str):
                token_id = library.token_to_id(append)
                if token_id is None:
                    raise ValueError(f"expected append as a token of the vocabulary, got {append!r}")
                append = token_id
            self._encode = lambda texts: [e.ids for e in library.encode_batch_fast(texts, add_special_tokens=special)]
            identity = library.to_str()
        kind = np.dtype(dtype if dtype is not None else "uint16" if (largest or 0) < 1 << 16 else "int32")
        if kind.kind not in "iu":
            raise TypeError(f"expected an integer dtype for tokens, got {kind}")
        self._most = int(np.iinfo(kind).max)
        if append is not None and not 0 <= int(append) <= self._most:
            raise ValueError(f"expected append as an id that {kind} holds, got {append!r}")
        self._end = [] if append is None else [int(append)]
        streams = {tokens: Stream((), kind)}
        self.schema = Schema(streams | {name: corpus.schema[name] for name in keep})
        settings = f"{identity}\0{self._end} {special} {self._text} {self.schema.digest}"
        self._digest = hashlib.blake2b(settings.encode(), digest_size=16).hexdigest()

    def num_chunks(self) -> int:
        """Return the number of the corpus's chunks."""
        return num_chunks(self._corpus)

    def chunks(self) -> Sequence[ChunkInfo]:
        """Refuse: sizes are known only after reading."""
        raise NotImplementedError

    def read(self, chunk: int) -> Chunk:
        """Return the tokens of a chunk of texts. A text that is not UTF-8 is an unreadable sequence."""
        read = self._corpus.read(chunk)
        value = read.values[self._text]
        assert isinstance(value, BytesValue)
        errors = dict(read.errors)
        if not value.one_sample_each:
            raise DataError(
                f"expected one text to a sequence, got {value.num_samples} for {value.num_sequences} in chunk {chunk}",
                path=self.name,
                stream=self._text,
            )
        lengths = np.zeros(read.num_sequences, np.int64)
        pieces: list[NDArray[Any]] = [np.empty(0, self.schema[self._tokens].dtype)]
        for which, texts in self._texts(value, errors):
            encoded = self._encode(texts)
            if len(encoded) != len(texts):
                what = f"expected tokens of {len(texts)} texts from the tokenizer, got {len(encoded)}"
                raise DataError(what, path=self.name, stream=self._text)
            for i, ids in zip(which, encoded, strict=True):
                token_ids = np.array([*ids, *self._end], np.int64)
                if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() <= self._most:
                    errors[i] = DataError(
                        f"expected tokens from 0 to {self._most}, got {token_ids.min()} to {token_ids.max()}",
                        path=self.name,
                        stream=self._text,
                    )
                    continue
                lengths[i] = len(token_ids)
                pieces.append(token_ids.astype(pieces[0].dtype))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = Value.from_dense(np.concatenate(pieces), offsets)
        extra = {name: read.values[name] for name in self._keep}
        return Chunk(self.schema, {self._tokens: tokens, **extra}, errors, seals=read.seals if extra else ())

    def _texts(self, value: BytesValue, errors: dict[int, DataError]) -> Iterator[tuple[list[int], list[str]]]:
        """Yield runs of texts with their indices. Texts that cannot be decoded are added to ``errors``."""
        which: list[int] = []
        texts: list[str] = []
        nbytes, bounds = 0, value.bounds.tolist()
        for i in range(value.num_sequences):
            if i in errors:
                continue
            encoded = value.data[bounds[i] : bounds[i + 1]].tobytes()
            try:
                texts.append(encoded.decode())
            except UnicodeDecodeError as error:
                errors[i] = DataError(f"expected a text in UTF-8: {error}", path=self.name, stream=self._text)
                continue
            which.append(i)
            nbytes += len(encoded)
            if nbytes >= _AT_A_TIME:
                yield which, texts
                which, texts, nbytes = [], [], 0
        if texts:
            yield which, texts

    def paths(self) -> Sequence[str]:
        """Return the corpus's paths."""
        return self._corpus.paths()

    def digest(self) -> str:
        """Return 32 hex digits over the corpus's digest, the tokenizer and the settings."""
        return hashlib.blake2b(f"{self._corpus.digest()} {self._digest}".encode(), digest_size=16).hexdigest()

    def close(self) -> None:
        """Close the corpus."""
        self._corpus.close()


def _identity(function: Tokenizer) -> str:
    """Return the identity of a function. Names alone would not distinguish two lambdas."""
    token_lists = [[int(token) for token in tokens] for tokens in function(list(_SAMPLES))]
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)} {token_lists}"


def _text_of(corpus: Deserializer, text: str | None) -> str:
    """Return the name of the stream of texts.

    Raises:
        SchemaError: there is no such stream, or there are several and ``text`` is None.
    """
    names = [name for name, stream in corpus.schema.items() if stream.is_bytes]
    listed = ", ".join(names) or "none"
    if text is None and len(names) != 1:
        raise SchemaError(f"expected one stream of texts in {corpus.name}, got {listed}; name it by text=")
    if text is not None and text not in names:
        raise SchemaError(f"expected a stream of texts for text=, got {text!r}; {corpus.name} has {listed}")
    return names[0] if text is None else text


def _library_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizer of the library, for whole texts."""
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"tokenizers is not installed; run: {install_line('tokenizers')}") from error
    if isinstance(tokenizer, (str, os.PathLike)):
        try:
            with open_regular(tokenizer) as file:
                text = file.read().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"expected a tokenizer.json: {error}", path=str(tokenizer)) from error
    elif isinstance(tokenizer, tokenizers.Tokenizer):
        text = tokenizer.to_str()
    else:
        raise TypeError(
            f"expected a path of a tokenizer.json, a tokenizers.Tokenizer or a function, got {type(tokenizer).__name__}"
        )
    try:
        loaded = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain exceptions
        raise DataError(
            f"expected a tokenizer of the library tokenizers: {error}",
            path=str(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else None,
        ) from error
    loaded.no_truncation()
    loaded.no_padding()
    return loaded
