"""torchtitan's loader: its batches, its states under any degree, and finite data on several ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest

import feedline as fl
from tests.frameworks.titan import TitanTokenizer, stand_in

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
dcp = pytest.importorskip("torch.distributed.checkpoint")

ROW, IGNORE = 32, -100
WORDS = ["wind", "käse", "the", "river", "🙂", "of", "stone"]
RNG = np.random.default_rng(5)
TEXTS = [" ".join(RNG.choice(WORDS, RNG.integers(0, 30))) for _ in range(120)]
TALKS = [
    [{"role": "user", "content": text}, {"role": "assistant", "content": text[:40]}] for text in TEXTS if len(text) > 9
]
TEMPLATE = """\
{%- for message in messages %}{{ '<' + message.role + '>' + message.content + '</s>' }}{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""


@pytest.fixture
def loaders(monkeypatch):
    stand_in(monkeypatch)
    from feedline.frameworks.torchtitan import FeedlineDataLoader

    return FeedlineDataLoader


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>", "<user>", "<assistant>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(TEXTS, trainer)
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return TitanTokenizer(folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("data")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (folder / "talks.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in TALKS))
    pq.write_table(pa.table({"id": range(len(TALKS)), "messages": TALKS}), folder / "talks.parquet")
    texts = [json.dumps(talk) for talk in TALKS]
    pq.write_table(pa.table({"messages": texts, "tools": [[{"name": "x"}]] * len(TALKS)}), folder / "texts.parquet")
    tokens = [np.array(encoded(tokenizer, text), np.int32) for text in TEXTS]
    fl.convert(fl.ArrayDeserializer(tokens=tokens), folder / "tokens.store")
    return folder


def encoded(tokenizer, text):
    return tokenizer.encode(text, add_bos=True, add_eos=True)


def made(loaders, files, tokenizer, name="texts.jsonl", *, rank=0, degree=1, rows=4, **settings):
    config = loaders.Config(dataset_path=str(files / name), chunk_size=1024, window=2, **settings)
    return config.build(
        dp_world_size=degree,
        dp_rank=rank,
        tokenizer=tokenizer,
        seq_len=ROW,
        local_batch_size=rows,
        snapshot_every_n_steps=1,
    )


def taken(loader, count=None):
    """The next batches: a list of rows, each with its tokens, positions and labels."""
    batches = []
    for number, (inputs, labels) in enumerate(loader, start=1):
        tokens, positions = inputs["input"], inputs["positions"]
        assert tokens.dtype == positions.dtype == labels.dtype == torch.int64
        assert tokens.shape == positions.shape == labels.shape
        batches.append(list(zip(tokens.tolist(), positions.tolist(), labels.tolist(), strict=True)))
        if number == count:
            break
    return batches


def by_step(ranks):
    """The rows of each step, over all ranks in their order."""
    assert len({len(batches) for batches in ranks}) == 1
    return [[row for batch in step for row in batch] for step in zip(*ranks, strict=True)]


def filled(steps):
    """All rows but those of padding."""
    padding = ([0] * ROW, list(range(ROW)), [IGNORE] * ROW)
    return [row for step in steps for row in step if row != padding]


def pieces(rows):
    """The pieces of documents in rows: tokens, and labels."""
    for tokens, positions, labels in rows:
        begins = [i for i, position in enumerate(positions) if position == 0]
        for a, b in zip(begins, [*begins[1:], ROW], strict=True):
            assert positions[a:b] == list(range(b - a))
            if any(tokens[a:b]):
                yield tokens[a:b], labels[a:b]


@pytest.mark.parametrize("name", ["texts.jsonl", "tokens.store"])
@pytest.mark.parametrize("degree", [1, 3])
def test_finite_data_comes_once_and_ends_on_all_ranks_together(loaders, files, tokenizer, name, degree):
    steps = by_step(
        [
            taken(made(loaders, files, tokenizer, name, rank=rank, degree=degree, infinite=False))
            for rank in range(degree)
        ]
    )
    assert {len(step) for step in steps} == {4 * degree}
    documents, parts = {}, list(pieces(filled(steps)))
    for tokens, labels in parts:
        assert labels[:-1] == tokens[1:]
        documents[labels[-1]] = documents.get(labels[-1], 0) + 1
    assert documents[IGNORE] == len(TEXTS)  # a piece that is cut ends with the next token of its document
    expected = sorted(token for text in TEXTS for token in encoded(tokenizer, text))
    assert sorted(token for tokens, _ in parts for token in tokens) == expected


@pytest.mark.parametrize("name", ["texts.jsonl", "tokens.store"])
def test_a_state_is_the_same_on_all_ranks_and_fits_any_degree(loaders, files, tokenizer, name):
    whole = made(loaders, files, tokenizer, name, rows=12)
    expected = taken(whole, 12)  # more than a sweep
    ranks = [made(loaders, files, tokenizer, name, rank=rank, degree=3) for rank in range(3)]
    first = by_step([taken(loader, 5) for loader in ranks])
    states = [loader.state_dict() for loader in ranks]
    assert states[0] == states[1] == states[2]
    saved = json.loads(json.dumps(states[0]))
    again = [made(loaders, files, tokenizer, name, rank=rank, degree=2, rows=6) for rank in range(2)]
    for loader in again:
        loader.load_state_dict(saved)
    assert first + by_step([taken(loader, 7) for loader in again]) == expected


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torchs_distributed_checkpoint_saves_one_rank_and_loads_another(loaders, files, tokenizer, tmp_path):
    saved = made(loaders, files, tokenizer, rank=1, degree=2)
    taken(saved, 5)
    dcp.save({"dataloader": saved}, checkpoint_id=str(tmp_path), no_dist=True)
    loaded = made(loaders, files, tokenizer, rows=8)
    dcp.load({"dataloader": loaded}, checkpoint_id=str(tmp_path), no_dist=True)
    assert [step[4:] for step in taken(loaded, 3)] == taken(saved, 3)
    assert loaded.state_dict() == saved.state_dict()


def test_the_end_of_finite_data_is_a_state_too(loaders, files, tokenizer):
    loader = made(loaders, files, tokenizer, infinite=False)
    every = taken(loader)
    ended = made(loaders, files, tokenizer, infinite=False)
    ended.load_state_dict(loader.state_dict())
    assert taken(ended) == []
    assert taken(loader) == every  # a validation begins again


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", ["talks.jsonl", "talks.parquet", "texts.parquet"])
def test_conversations_have_labels_of_the_assistant_only(loaders, files, tokenizer, name):
    steps = [taken(made(loaders, files, tokenizer, name, messages="messages", infinite=False))]
    answers = []
    for tokens, labels in pieces(filled(by_step(steps))):
        expected, mine = [IGNORE] * len(tokens), False
        for i, token in enumerate(tokens[:-1]):
            mine = token == tokenizer.tokenizer.token_to_id("<assistant>") or (mine and token != tokenizer.eos_id)
            expected[i] = tokens[i + 1] if mine else IGNORE
        assert labels == expected
        answers.append([label for label in labels if label != IGNORE])
    short = [talk for talk in TALKS if len(talk_tokens(tokenizer, talk)) <= ROW]
    assert 0 < len(short) < len(TALKS)  # conversations longer than a row are left out
    assert sorted(answers) == sorted(tokenizer.tokenizer.encode(f"{talk[1]['content']}</s>").ids for talk in short)


def talk_tokens(tokenizer, talk):
    return tokenizer.tokenizer.encode("".join(f"<{m['role']}>{m['content']}</s>" for m in talk)).ids


def test_broken_records_leave_batches_as_large_as_they_are(loaders, files, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = (files / "talks.jsonl").read_text().splitlines()
    lines[3] = json.dumps({"messages": [{"role": "user"}]})
    (tmp_path / "talks.jsonl").write_text("\n".join(lines))
    settings = {"messages": "messages", "infinite": False}
    steps = taken(made(loaders, tmp_path, tokenizer, "talks.jsonl", on_error="skip", **settings))
    assert {len(step) for step in steps} == {4}
    with pytest.raises(fl.DataError, match="content"):
        taken(made(loaders, tmp_path, tokenizer, "talks.jsonl", **settings))


def test_a_tokenizer_of_another_kind_encodes_text_by_text(loaders, files, tokenizer):
    class Plain:
        def encode(self, text, add_bos, add_eos):
            return encoded(tokenizer, text)

    assert taken(made(loaders, files, Plain()), 5) == taken(made(loaders, files, tokenizer), 5)


def test_what_is_refused(loaders, files, tokenizer):
    loader = made(loaders, files, tokenizer)
    loader.load_state_dict({})
    with pytest.raises(fl.StateError, match="got one with dp_rank_0, world_size"):
        loader.load_state_dict({"dp_rank_0": b"", "world_size": 1})
    with pytest.raises(fl.StateError, match="taken from other data"):
        loader.load_state_dict(made(loaders, files, tokenizer, "tokens.store").state_dict())
    with pytest.raises(ValueError, match="got both"):
        made(loaders, files, tokenizer, text="text", messages="messages")
    with pytest.raises(ValueError, match="expected dataset_path"):
        loaders.Config().build(dp_world_size=1, dp_rank=0, tokenizer=tokenizer, seq_len=8, local_batch_size=1)
    loader.close()
