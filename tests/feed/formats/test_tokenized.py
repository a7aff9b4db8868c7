"""Texts to tokens: the library's tokens, for any chunks, undecodable texts, conversion and packing."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import feedline as fl
from tests.cli.shell import feedline

tokenizers = pytest.importorskip("tokenizers")

RNG = np.random.default_rng(3)
WORDS = ["wind", "käse", "the", "a", "river", "🙂", "of", "stone", "Zeit"]
TEXTS = [" ".join(RNG.choice(WORDS, RNG.integers(0, 60))) for _ in range(300)]


@pytest.fixture(scope="module")
def tokenizer():
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<end>", "<begin>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<begin> $A", special_tokens=[("<begin>", made.token_to_id("<begin>"))]
    )
    return made


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text, "n": i}) + "\n" for i, text in enumerate(TEXTS)))
    return path


def opened(lines, memory=1 << 20):
    return fl.JSONLinesDeserializer(lines, text=fl.Stream((), "str"), n=fl.Stream((), "int64"), memory=memory)


def documents(corpus, **options):
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, **options) as source:
        return [tokens.tolist() for minibatch in source.minibatches(500) for tokens in minibatch["tokens"].sequences()]


def expected(tokenizer, special=False, end=()):
    return [[*one.ids, *end] for one in tokenizer.encode_batch(TEXTS, add_special_tokens=special)]


@pytest.mark.parametrize("options", [{}, {"special": True}, {"append": "<end>"}, {"append": 1, "dtype": "int64"}])
def test_tokens_match_the_library(tokenizer, lines, options):
    corpus = fl.Tokenized(opened(lines), tokenizer, text="text", **options)
    end = [] if "append" not in options else [tokenizer.token_to_id("<end>") if options["append"] == "<end>" else 1]
    assert documents(corpus) == expected(tokenizer, options.get("special", False), end)
    assert corpus.schema["tokens"].dtype == options.get("dtype", "uint16")


@pytest.mark.parametrize("options", [{"special": True}, {"append": "<end>"}])
def test_a_pickled_copy_has_the_same_tokens(tokenizer, lines, options):
    corpus = fl.Tokenized(opened(lines), tokenizer, text="text", **options)
    copy = pickle.loads(pickle.dumps(corpus))
    assert documents(copy) == documents(corpus)
    assert copy.digest() == corpus.digest()


def test_small_batches_truncation_and_padding_change_nothing(tokenizer, lines, monkeypatch):
    monkeypatch.setattr("feedline.feed.composed.texts.tokenized._AT_A_TIME", 64)
    cutting = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    cutting.enable_truncation(4)
    cutting.enable_padding(length=100)
    assert documents(fl.Tokenized(opened(lines), cutting, text="text")) == expected(tokenizer)
    assert cutting.truncation is not None  # the caller's stays as it was


def test_a_path_other_streams_and_what_a_digest_covers(tokenizer, lines, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    corpus = fl.Tokenized(opened(lines), tmp_path / "tokenizer.json", tokens="ids", keep=["n"])
    with fl.MinibatchSource(corpus, seed=2, max_sweeps=1) as source:
        for minibatch in source.minibatches(500):
            for i, ids in zip(minibatch["n"].rows.tolist(), minibatch["ids"].sequences(), strict=True):
                assert ids.tolist() == tokenizer.encode(TEXTS[i], add_special_tokens=False).ids
    digests = {fl.Tokenized(opened(lines), tokenizer).digest() for _ in range(2)}
    digests |= {fl.Tokenized(opened(lines), tokenizer, **o).digest() for o in ({"append": 0}, {"special": True})}
    digests |= {fl.Tokenized(opened(lines), tokenizer, **o).digest() for o in ({"dtype": "int32"}, {"keep": ["n"]})}
    other = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    other.add_tokens(["river bank"])
    digests.add(fl.Tokenized(opened(lines), other).digest())
    assert len(digests) == 6


def test_conversion_in_threads_and_packing(tokenizer, lines, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    done = json.loads(
        feedline(
            *("convert", lines, tmp_path / "store", "--stream", "text=scalar:str", "--jobs", "2", "--json"),
            *("--tokenizer", tmp_path / "tokenizer.json", "--append-token", "<end>"),
        ).stdout
    )
    end = tokenizer.token_to_id("<end>")
    assert done["sequences"] == len(TEXTS)
    assert done["samples"] == sum(map(len, expected(tokenizer, end=[end])))
    store = fl.open_corpus(tmp_path / "store")
    assert documents(store) == expected(tokenizer, end=[end])
    with fl.MinibatchSource(fl.Packed(fl.open_corpus(tmp_path / "store"), 128), seed=1, max_sweeps=1) as source:
        packed = [x for m in source.minibatches(1280) for x in m["tokens"].rows[m["segment"].rows > 0].tolist()]
    assert sorted(packed) == sorted(x for document in expected(tokenizer, end=[end]) for x in document)
    assert "expected --tokenizer" in feedline("convert", lines, tmp_path / "b", "--append-token", "x", code=2).stderr


class Raw(fl.UserDeserializer):
    """Texts of which one is not UTF-8, and one is unreadable."""

    schema = fl.Schema({"text": fl.Stream((), "bytes")})

    def num_chunks(self):
        return 1

    def get_chunk(self, chunk):
        texts = [b"the wind", b"\xff\xfe", b"lost", b"a stone"]
        error = {2: fl.DataError("expected a text, got none")}
        return fl.Chunk(self.schema, {"text": fl.Value.from_bytes(texts)}, error)


def test_texts_that_cannot_be_read_are_bad_sequences(tokenizer, tmp_path):
    corpus = fl.Tokenized(Raw(), tokenizer)
    chunk = corpus.read(0)
    assert sorted(chunk.errors) == [1, 2]
    assert "expected a text in UTF-8" in str(chunk.errors[1])
    options = {"on_error": fl.Quarantine(tmp_path / "bad.jsonl")}
    found = documents(corpus, **options)
    assert found == [tokenizer.encode(text, add_special_tokens=False).ids for text in ("the wind", "a stone")]


def test_functions(lines):
    corpus = fl.Tokenized(opened(lines), lambda texts: [list(text.encode()) for text in texts], dtype="uint8", append=0)
    assert documents(corpus) == [[*text.encode(), 0] for text in TEXTS]
    large = fl.Tokenized(opened(lines), lambda texts: [[len(text), 300] for text in texts], dtype="uint8")
    assert "expected tokens from 0 to 255" in str(large.read(0).errors[0])


def test_what_is_refused(tokenizer, lines, tmp_path):
    numbers = fl.ArrayDeserializer(x=np.arange(3))
    cases = [
        (fl.SchemaError, "expected one stream of texts in arrays, got none", lambda: fl.Tokenized(numbers, tokenizer)),
        (fl.SchemaError, "got 'n'", lambda: fl.Tokenized(opened(lines), tokenizer, text="n")),
        (fl.SchemaError, "expected keep as", lambda: fl.Tokenized(opened(lines), tokenizer, keep=["no"])),
        (fl.SchemaError, "another name", lambda: fl.Tokenized(opened(lines), tokenizer, keep=["n"], tokens="n")),
        (ValueError, "got '<no>'", lambda: fl.Tokenized(opened(lines), tokenizer, append="<no>")),
        (ValueError, "that uint8 holds", lambda: fl.Tokenized(opened(lines), tokenizer, append=300, dtype="uint8")),
        (TypeError, "integer dtype", lambda: fl.Tokenized(opened(lines), tokenizer, dtype="float32")),
        (ValueError, "tokenize its parts", lambda: fl.Tokenized(fl.Mixture({"a": opened(lines)}, {"a": 1}), tokenizer)),
        (ValueError, "expected dtype", lambda: fl.Tokenized(opened(lines), str.split)),
        (TypeError, "got int", lambda: fl.Tokenized(opened(lines), 3)),
        (fl.DataError, "tokenizer.json", lambda: fl.Tokenized(opened(lines), tmp_path / "none.json")),
        (fl.DataError, "library tokenizers", lambda: fl.Tokenized(opened(lines), lines)),
    ]
    for kind, told, make in cases:
        with pytest.raises(kind, match=told):
            make()
    with pytest.raises(ValueError, match=r"fl\.convert"):
        fl.Take(fl.Tokenized(opened(lines), tokenizer), 128)


def packed_rows(corpus, state=None, count=2):
    with fl.MinibatchSource(fl.Packed(corpus, 128, method="split"), seed=1, max_sweeps=2) as source:
        if state is not None:
            source.load_state_dict(state)
        before = source.state_dict()
        parts = [m for _ in range(count) if (m := source.next_minibatch(512))]
        return [m["tokens"].rows[m["segment"].rows > 0].tolist() for m in parts], before, source.state_dict()


def test_texts_are_packed_as_they_are_read(tokenizer, lines):
    def opened_in_chunks():
        corpus = fl.JSONLinesDeserializer(lines, text=fl.Stream((), "str"), chunk_size=4096)
        return fl.Tokenized(corpus, tokenizer, append="<end>")

    assert opened_in_chunks().num_chunks() > 8
    rows, state, _ = packed_rows(opened_in_chunks(), count=1000)
    tokens = sorted(
        token for document in expected(tokenizer, end=[tokenizer.token_to_id("<end>")]) for token in document
    )
    assert sorted(token for row in rows for token in row) == sorted([*tokens, *tokens])
    resumed = []
    while part := packed_rows(opened_in_chunks(), state)[0]:
        resumed += part
        state = packed_rows(opened_in_chunks(), state)[2]
    assert resumed == rows


def test_functions_are_identified_by_their_results_for_texts(lines):
    pair = [
        fl.Tokenized(opened(lines), lambda texts, n=n: [[n + len(t)] for t in texts], dtype="uint16") for n in (0, 1)
    ]
    assert pair[0].digest() != pair[1].digest()


@pytest.mark.parametrize("other", [False, True])
def test_an_interrupted_conversion_goes_on_with_the_same_tokenizer_only(lines, tmp_path, other):
    def made(plus=0, fails=False):
        calls = []

        def encode(texts):
            calls.append(len(texts))
            if fails and len(calls) == 6:
                raise KeyboardInterrupt
            return [[plus + byte for byte in text.encode()] for text in texts]

        parts = [fl.Take(opened(lines), i, i + 30) for i in range(0, 300, 30)]
        return fl.Tokenized(fl.Concat(*parts), encode, dtype="int32"), calls

    options = {"part_bytes": 4096, "chunk_bytes": 1024}
    corpus, _ = made(fails=True)
    assert corpus.num_chunks() > 8
    with pytest.raises(KeyboardInterrupt):
        fl.convert(corpus, tmp_path / "store", **options)
    again, calls = made(plus=int(other))
    fl.convert(again, tmp_path / "store", **options)
    assert (len(calls) == 1 + again.num_chunks()) == other  # one call distinguishes it from other functions
    fl.convert(made(plus=int(other))[0], tmp_path / "whole", **options)
    files = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()} == files


def test_another_list_of_what_to_skip_is_another_conversion(tokenizer, lines, tmp_path):
    from feedline.feed.composed.skipping import Skipping
    from feedline.feed.conversion.convert import _CorpusReader

    digests = set()
    for sequence in (3, 4):
        (tmp_path / "skip.jsonl").write_text(json.dumps({"sequence": sequence}) + "\n")
        for wrap in (lambda x: x, lambda x: fl.Take(x, 100)):
            corpus = fl.Tokenized(wrap(Skipping(opened(lines), tmp_path / "skip.jsonl")), tokenizer, text="text")
            digests.add(_CorpusReader(corpus, 1, "local", None).digest())
    assert len(digests) == 4


def test_a_tokenizer_that_loses_texts(lines):
    short = fl.Tokenized(opened(lines), lambda texts: [[1]] * min(len(texts), 9), dtype="uint8")
    with pytest.raises(fl.DataError, match="expected tokens of 300 texts from the tokenizer, got 9"):
        short.read(0)
