"""A corpus of the tokens of texts, which reading tokenizes."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import BytesValue
from feedline.errors import DataError, SchemaError
from feedline.feed.composed.texts.chat_template import ChatTemplate, Conversation
from feedline.feed.composed.texts.library_tokenizer import library_tokenizer
from feedline.feed.protocol import ChunkInfo, Deserializer, Ordered, Unsized, is_sized, num_chunks
from feedline.feed.quarantine import DocumentError

Tokenizer = Callable[[list[str]], Sequence[Sequence[int]]]
Mask = NDArray[np.bool_]

#: Stream of conversations: whether the label at each place is of the assistant's turns.
TRAINED = "trained"

#: Stream of the tools of conversations, in JSON.
TOOLS = "tools"

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


class _Document(NamedTuple):
    """The tokens of a text.

    Attributes:
        tokens: ids of the tokens.
        of_assistant: bool (tokens,), which of them are of the assistant's turns. Empty for plain texts.
        problem: why the text has no tokens. None if it has.
    """

    tokens: Sequence[int]
    of_assistant: Mask = np.empty(0, np.bool_)
    problem: str | None = None


Encode = Callable[[list[str], list[str] | None], Sequence[_Document]]
"""A function from texts, and the tools of each conversation, to their tokens."""


class Tokenized(Deserializer, Unsized):
    """A corpus whose texts are replaced by their tokens, one sequence each.

    The number of tokens of a text is unknown before reading. A `MinibatchSource` reads this corpus, and `Packed` packs
    it, as it is. `convert` writes it to a store, which everything else accepts, too.

    Args:
        corpus: corpus with a stream of texts, one to a sequence.
        tokenizer: path of a ``tokenizer.json``, or a `tokenizers.Tokenizer`, without its truncation and padding. Or a
            function from a list of texts to one list of token ids each, the same in every call. Its identity is its
            name and its tokens for some texts, for which the constructor calls it. Or a `ChatTemplate`: texts are then
            lists of messages in JSON, and a stream ``trained``, bool, of the same length as the tokens, says whether
            the label at a place, the next token, is of the assistant's turns. A list that is no conversation is an
            unreadable sequence. A stream ``tools`` of bytes or text has the tools of each, in JSON, for the template.
        text: name of the stream of texts. None: the only one, beside the tools.
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
        tokenizer: str | os.PathLike[str] | ChatTemplate | Tokenizer | Any,
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
        self._trains = isinstance(tokenizer, ChatTemplate)
        self._corpus, self._text = corpus, _text_of(corpus, text, self._trains)
        tools = corpus.schema[TOOLS] if self._trains and TOOLS in corpus.schema else None
        self._has_tools = tools is not None and tools.is_bytes and self._text != TOOLS
        self._tokens, self._keep, self.name = tokens, tuple(keep), corpus.name
        if isinstance(keep, str) or any(name not in corpus.schema for name in keep):
            raise SchemaError(f"expected keep as a list of {', '.join(corpus.schema)}, got {keep!r}")
        if tokens in self._keep:
            raise SchemaError(f"expected another name than `{tokens}` for tokens, as a stream of that name is kept")
        if _is_function(tokenizer) and (dtype is None or isinstance(append, str) or special):
            raise ValueError("expected dtype, append as an id and no special tokens for a function as tokenizer")
        self._encode, identity, library = _encoder(tokenizer, special)
        largest: int | None = None
        if library is not None:
            largest = max(library.get_vocab(with_added_tokens=True).values(), default=0)
            if isinstance(append, str):
                token_id = library.token_to_id(append)
                if token_id is None:
                    raise ValueError(f"expected append as a token of the vocabulary, got {append!r}")
                append = token_id
        kind = np.dtype(dtype if dtype is not None else "uint16" if (largest or 0) < 1 << 16 else "int32")
        if kind.kind not in "iu":
            raise TypeError(f"expected an integer dtype for tokens, got {kind}")
        self._most = int(np.iinfo(kind).max)
        if append is not None and not 0 <= int(append) <= self._most:
            raise ValueError(f"expected append as an id that {kind} holds, got {append!r}")
        self._end = [] if append is None else [int(append)]
        streams = {tokens: Stream((), kind)}
        if self._trains:
            if TRAINED in (tokens, *self._keep):
                raise SchemaError(f"expected no stream `{TRAINED}`, which conversations add, got it as another one")
            streams[TRAINED] = Stream((), "bool")
        self.schema = Schema(streams | {name: corpus.schema[name] for name in keep})
        settings = f"{identity}\0{self._end} {special} {self._text} {self.schema.digest}"
        settings += f" {TOOLS}" if self._has_tools else ""
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
        value = self._texts_in(read, chunk, self._text)
        tools = self._texts_in(read, chunk, TOOLS) if self._has_tools else None
        errors = dict(read.errors)
        lengths = np.zeros(read.num_sequences, np.int64)
        pieces: list[NDArray[Any]] = [np.empty(0, self.schema[self._tokens].dtype)]
        marks: list[NDArray[np.bool_]] = [np.empty(0, np.bool_)]
        for which, texts in self._texts(value, errors):
            encoded = self._encode(texts, None if tools is None else _decoded(tools, which))
            if len(encoded) != len(texts):
                what = f"expected tokens of {len(texts)} texts from the tokenizer, got {len(encoded)}"
                raise DataError(what, path=self.name, stream=self._text)
            for i, document in zip(which, encoded, strict=True):
                problem = document.problem
                token_ids = np.array([*document.tokens, *self._end], np.int64)
                if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() <= self._most:
                    problem = f"expected tokens from 0 to {self._most}, got {token_ids.min()} to {token_ids.max()}"
                if problem is not None:
                    errors[i] = DataError(problem, stream=self._text)
                    continue
                lengths[i] = len(token_ids)
                pieces.append(token_ids.astype(pieces[0].dtype))
                if self._trains:
                    marks.append(_trained(document.of_assistant, len(self._end)))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values: dict[str, Value] = {self._tokens: Value.from_dense(np.concatenate(pieces), offsets)}
        if self._trains:
            values[TRAINED] = Value.from_dense(np.concatenate(marks), offsets)
        extra = {name: read.values[name] for name in self._keep}
        located = self._located(chunk, errors)
        return Chunk(self.schema, {**values, **extra}, located, seals=read.seals if extra else ())

    def _located(self, chunk: int, errors: Mapping[int, DataError]) -> dict[int, DataError]:
        """Return errors that name the texts, if their corpus knows their ordinals before reading."""
        if not errors or not is_sized(self._corpus):
            return dict(errors)
        first = sum(info.sequences for info in self._corpus.chunks()[:chunk])
        return {i: DocumentError.of(error, first + i, self._corpus) for i, error in errors.items()}

    def _texts_in(self, read: Chunk, chunk: int, stream: str) -> BytesValue:
        """Return the texts of a stream.

        Raises:
            DataError: some sequences have none, or several.
        """
        value = read.values[stream]
        assert isinstance(value, BytesValue)
        if not value.one_sample_each:
            raise DataError(
                f"expected one text to a sequence, got {value.num_samples} for {value.num_sequences} in chunk {chunk}",
                path=self.name,
                stream=stream,
            )
        return value

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
                errors[i] = DataError(f"expected a text in UTF-8: {error}", stream=self._text)
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


def _encoder(tokenizer: Any, special: bool) -> tuple[Encode, str, Any]:
    """Return a function that encodes texts and can be pickled, a text that identifies it, and the library's tokenizer,
    if there is one.

    Raises:
        ValueError: special tokens are requested for conversations.
    """
    if isinstance(tokenizer, ChatTemplate):
        if special:
            raise ValueError("expected special=False for a ChatTemplate, as a template writes the special tokens")
        return functools.partial(_conversations, tokenizer), tokenizer.identity, tokenizer.tokenizer
    if _is_function(tokenizer):
        return functools.partial(_by_function, tokenizer), _identity(tokenizer), None
    library = library_tokenizer(tokenizer)
    return functools.partial(_by_library, library, special), library.to_str(), library


def _is_function(tokenizer: Any) -> bool:
    return callable(tokenizer) and not hasattr(tokenizer, "encode_batch")


def _by_function(function: Tokenizer, texts: list[str], _: list[str] | None) -> list[_Document]:
    return [_Document(tokens) for tokens in function(texts)]


def _by_library(library: Any, special: bool, texts: list[str], _: list[str] | None) -> list[_Document]:
    return [_Document(e.ids) for e in library.encode_batch_fast(texts, add_special_tokens=special)]


def _conversations(chat: ChatTemplate, texts: list[str], tools: list[str] | None) -> list[_Document]:
    """Return the tokens of conversations in JSON, and which of them are of a turn of the assistant."""
    rendered: list[Conversation | str] = []
    for i, text in enumerate(texts):
        try:
            rendered.append(chat.render(json.loads(text), None if tools is None else _tools(tools[i])))
        except (ValueError, RecursionError) as error:  # a JSONDecodeError is a ValueError
            rendered.append(f"expected a conversation in JSON: {error}")
    whole = [conversation for conversation in rendered if isinstance(conversation, Conversation)]
    encodings = iter(chat.tokenizer.encode_batch([each.text for each in whole], add_special_tokens=False))
    documents = []
    for conversation in rendered:
        if isinstance(conversation, str):
            documents.append(_Document([], problem=conversation))
            continue
        encoding = next(encodings)
        documents.append(_Document(encoding.ids, _in_turns(conversation, encoding.offsets, chat.tagged)))
    return documents


def _in_turns(conversation: Conversation, offsets: Sequence[tuple[int, int]], tagged: bool) -> Mask:
    """Return which tokens begin in a turn, or, where the template says what a turn is, have a part in it."""
    in_turn = np.zeros(len(conversation.text) + 1, np.bool_)
    for start, stop in conversation.turns:
        in_turn[start:stop] = True
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    if not tagged:
        return in_turn[starts]
    before = np.concatenate([[0], np.cumsum(in_turn)])
    return before[ends] > before[starts]


def _tools(text: str) -> Any:
    """Return the tools of a conversation from their JSON, or from the JSON of a string with it. None: it has none."""
    if not text:
        return None
    tools = json.loads(text)
    return json.loads(tools) if isinstance(tools, str) and tools else tools or None


def _decoded(value: BytesValue, which: list[int]) -> list[str]:
    """Return texts. Those that are not UTF-8 are no JSON either."""
    bounds = value.bounds.tolist()
    return [value.data[bounds[i] : bounds[i + 1]].tobytes().decode(errors="replace") for i in which]


def _trained(of_assistant: Mask, appended: int) -> Mask:
    """Return whether the label at each place, the next token, is of the assistant's turns. A token that is appended is
    of the turn of the last one."""
    if not len(of_assistant):
        return np.zeros(appended, np.bool_)
    return np.concatenate([of_assistant[1:], np.full(appended, of_assistant[-1]), [False]])


def _identity(function: Tokenizer) -> str:
    """Return the identity of a function. Names alone would not distinguish two lambdas."""
    token_lists = [[int(token) for token in tokens] for tokens in function(list(_SAMPLES))]
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)} {token_lists}"


def _text_of(corpus: Deserializer, text: str | None, of_chats: bool) -> str:
    """Return the name of the stream of texts, or of conversations.

    Raises:
        SchemaError: there is no such stream, or there are several and ``text`` is None.
    """
    names = [name for name, stream in corpus.schema.items() if stream.is_bytes]
    listed = ", ".join(names) or "none"
    likely = [name for name in names if not of_chats or name != TOOLS]
    if text is None and len(likely) != 1:
        raise SchemaError(f"expected one stream of texts in {corpus.name}, got {listed}; name it by text=")
    if text is not None and text not in names:
        raise SchemaError(f"expected a stream of texts for text=, got {text!r}; {corpus.name} has {listed}")
    return likely[0] if text is None else text
