"""Documents of texts and pictures: a picture token becomes those of its picture, in rows with the pictures."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest

import feedline as fl

Image = pytest.importorskip("PIL.Image")
tokenizers = pytest.importorskip("tokenizers")

PICTURE = 3
TEMPLATE = """\
{%- for message in messages %}{{ '<' + message.role + '>' }}
{%- for part in message.content %}{{ '<picture>' if part.type == 'image' else part.text }}{% endfor %}<end>
{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def encoded(width, height, kind="PNG", turned=False):
    file = io.BytesIO()
    exif = Image.Exif()
    if turned:
        exif[0x0112] = 6  # by a quarter
    Image.new("RGB", (width, height), (width % 256, height % 256, 0)).save(file, kind, exif=exif)
    return file.getvalue()


def patches(width, height):
    """Of 16 pixels, the last ones incomplete, and one more at the end of each line."""
    return (-(-width // 16) + 1) * -(-height // 16)


def documents(count=60):
    """Tokens, upright sizes of pictures, and encoded pictures, by document."""
    rng = np.random.default_rng(0)
    tokens, sizes, pictures = [], [], []
    for _ in range(count):
        words = rng.integers(4, 100, rng.integers(0, 12)).tolist()
        of_document = [tuple(rng.integers(1, 80, 2).tolist()) for _ in range(rng.integers(0, 4))]
        for _ in of_document:
            words.insert(rng.integers(0, len(words) + 1), PICTURE)
        kinds = rng.integers(0, 3, len(of_document)).tolist()
        tokens.append(words)
        sizes.append(of_document)
        pictures.append(
            [
                encoded(*size[::-1], "JPEG", turned=True) if kind == 2 else encoded(*size, ("PNG", "JPEG")[kind])
                for size, kind in zip(of_document, kinds, strict=True)
            ]
        )
    return tokens, sizes, pictures


def corpus_of(tokens, pictures, **more):
    return fl.ArrayDeserializer(
        tokens=fl.Value.from_sequences([np.array(words, np.int32) for words in tokens]),
        image=fl.Value.from_bytes(pictures, "bytes"),
        chunk_sequences=16,
        **more,
    )


def repeated(tokens, counts):
    """The tokens of a document by a plain loop."""
    counts, out = iter(counts), []
    for token in tokens:
        out += [token] * (next(counts) if token == PICTURE else 1)
    return out


def delivered(corpus, name, **options):
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, **options) as source:
        return [
            sequence if isinstance(sequence, list) else sequence.tolist()
            for minibatch in source.minibatches(200)
            for sequence in minibatch[name].sequences()
        ]


@pytest.mark.parametrize("count", [patches, 1, 5])
def test_each_picture_token_becomes_those_of_its_picture(count):
    tokens, sizes, pictures = documents()
    corpus = fl.PictureTokens(corpus_of(tokens, pictures), PICTURE, count)
    expected = [
        repeated(words, [patches(*size) if callable(count) else count for size in of_document])
        for words, of_document in zip(tokens, sizes, strict=True)
    ]
    assert delivered(corpus, "tokens") == expected
    assert delivered(corpus, "image") == pictures


def test_labels_that_are_picture_tokens_are_not_trained():
    tokens, sizes, pictures = documents()
    trained = [np.array([True] * (len(words) - 1) + [False] * (len(words) > 0), bool) for words in tokens]
    corpus = corpus_of(tokens, pictures, trained=fl.Value.from_sequences(trained))
    corpus = fl.PictureTokens(corpus, PICTURE, patches)
    expected = []
    for words, of_document in zip(tokens, sizes, strict=True):
        longer = repeated(words, [patches(*size) for size in of_document])
        expected.append([following != PICTURE for following in longer[1:]] + [False] * (len(longer) > 0))
    assert delivered(corpus, "trained") == expected


def test_documents_that_do_not_fit_are_unreadable(tmp_path):
    tokens, _, pictures = documents()
    with_pictures = [i for i, of_document in enumerate(pictures) if of_document]
    lacking, other, cut = with_pictures[:3]
    pictures[lacking] = pictures[lacking][1:]
    pictures[other] = [b"no picture", *pictures[other][1:]]
    pictures[cut] = [pictures[cut][0][:6], *pictures[cut][1:]]
    corpus = fl.PictureTokens(corpus_of(tokens, pictures), PICTURE, patches)
    listed = tmp_path / "bad.jsonl"
    kept = delivered(corpus, "image", on_error=fl.Quarantine(listed))
    assert kept == [each for i, each in enumerate(pictures) if i not in (lacking, other, cut)]
    reasons = [json.loads(line)["reason"] for line in listed.read_text().splitlines()]
    assert len(reasons) == 3
    assert f"for each of {len(pictures[lacking])} pictures, got {len(pictures[lacking]) + 1}" in reasons[0]
    assert all("expected pictures in JPEG or PNG" in reason for reason in reasons[1:])
    with fl.MinibatchSource(corpus) as source, pytest.raises(fl.DataError, match=r"a picture token, 3,|JPEG or PNG"):
        for _ in range(60):
            source.next_minibatch(64)


def test_a_picture_that_a_function_refuses_costs_its_document():
    tokens, sizes, pictures = documents()

    def refusing(width, height):
        if width < 24:
            raise ValueError("expected pictures of at least 24 pixels")
        return patches(width, height) if height >= 24 else 0

    corpus = fl.PictureTokens(corpus_of(tokens, pictures), PICTURE, refusing)
    refused = [any(min(size) < 24 for size in of_document) for of_document in sizes]
    assert 0 < sum(refused) < len(refused)
    expected = [
        repeated(words, [patches(*size) for size in of_document])
        for words, of_document, is_refused in zip(tokens, sizes, refused, strict=True)
        if not is_refused
    ]
    assert delivered(corpus, "tokens", on_error="skip") == expected


def conversations():
    """Records with messages in parts, and pictures."""
    rng, records = np.random.default_rng(1), []
    for i in range(40):
        sizes = [tuple(rng.integers(8, 70, 2).tolist()) for _ in range(1 + i % 3)]
        question = [{"type": "image", "text": None} for _ in sizes]
        question.insert(int(rng.integers(0, len(question) + 1)), {"type": "text", "text": f"what is {i}"})
        answer = [{"type": "text", "text": f"picture of {i}" * (i % 4 + 1)}]
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        records.append((messages, sizes, [encoded(*size) for size in sizes]))
    return records


@pytest.fixture(scope="module")
def tokenizer():
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<end>", "<user>", "<assistant>", "<picture>"]
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["what is a picture of"], trainer)
    assert made.token_to_id("<picture>") == PICTURE
    return made


def written_tokens(tokenizer, messages, sizes):
    """The tokens of a conversation by a plain loop."""
    text, pictures = "", iter(sizes)
    for message in messages:
        text += f"<{message['role']}>"
        for part in message["content"]:
            text += "<picture>" * patches(*next(pictures)) if part["type"] == "image" else part["text"]
        text += "<end>"
    return tokenizer.encode(text, add_special_tokens=False).ids


def written_parquet(folder, records):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = [
        {"messages": messages, "images": [{"bytes": each, "path": None} for each in pictures]}
        for messages, _, pictures in records
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "talks.parquet", row_group_size=8)
    streams = {
        "messages": fl.Stream(dtype="bytes", defines_size=True),
        "image": fl.Stream(dtype="bytes", field="images[].bytes"),
    }
    return fl.open_corpus(folder / "talks.parquet", streams=streams)


def written_shard(folder, records):
    """WebDataset's layout, with any number of pictures to a sample."""
    with tarfile.open(folder / "talks.tar", "w") as archive:
        for i, (messages, _, pictures) in enumerate(records):
            members = [(f"{k}.png", picture) for k, picture in enumerate(pictures)]
            for suffix, data in ("json", json.dumps(messages).encode()), *members:
                member = tarfile.TarInfo(f"{i:04}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    streams = {"messages": fl.Stream(dtype="bytes", field="json"), "image": fl.Stream(dtype="bytes", field="*.png")}
    return fl.TarDeserializer(folder / "talks.tar", streams, chunk_size=2000)


@pytest.mark.parametrize("write", [written_parquet, written_shard])
def test_conversations_with_pictures_are_packed(write, tokenizer, tmp_path):
    records = conversations()
    talks = fl.Tokenized(
        write(tmp_path, records), fl.ChatTemplate(tokenizer, TEMPLATE), text="messages", keep=["image"]
    )
    corpus = fl.PictureTokens(talks, PICTURE, patches)
    expected = sorted((written_tokens(tokenizer, messages, sizes), pictures) for messages, sizes, pictures in records)

    fl.convert(corpus, tmp_path / "talks.store")
    for documents in (corpus, fl.open_corpus(tmp_path / "talks.store")):
        packed = fl.Packed(documents, 192, cost={"tokens": 1, "image": 0}, tokens="tokens")
        seen = []
        with fl.MinibatchSource(packed, seed=2, max_sweeps=1) as source:
            for minibatch in source.minibatches(576):
                tokens, bounds = minibatch["tokens"].rows, minibatch["cu_seqlens"].rows
                pictures, of_pictures = sum(minibatch["image"].sequences(), []), minibatch["image_cu_seqlens"].rows
                filled = minibatch["segment"].rows[bounds[:-1]] > 0
                seen += [
                    (tokens[bounds[k] : bounds[k + 1]].tolist(), pictures[of_pictures[k] : of_pictures[k + 1]])
                    for k in np.flatnonzero(filled).tolist()
                ]
                trained = minibatch["trained"].rows
                assert trained.any()
                assert not (minibatch["labels"].rows[trained] == PICTURE).any()
        assert sorted(seen) == expected


def test_a_digest_distinguishes_the_settings():
    tokens, _, pictures = documents(20)
    corpus = corpus_of(tokens, pictures)
    settings = [(PICTURE, patches), (PICTURE, 4), (PICTURE, 5), (9, 4), (PICTURE, lambda width, height: 4)]
    assert len({fl.PictureTokens(corpus, *each).digest() for each in settings}) == len(settings)
    assert fl.PictureTokens(corpus, PICTURE, 4).digest() == fl.PictureTokens(corpus, PICTURE, 4).digest()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((PICTURE, 4), {"pictures": "photo"}, fl.SchemaError, "encoded pictures.* as `photo` in arrays, got none"),
        ((PICTURE, 4), {"tokens": "image"}, fl.SchemaError, "integers with shape"),
        ((PICTURE, lambda width, height: width // 300), {}, ValueError, "for 224 x 224 pixels of at least 1, got 0"),
        ((PICTURE, lambda width, height: width / 2), {}, TypeError, "for 224 x 224 pixels as an int, got 112.0"),
        ((PICTURE, 0), {}, ValueError, "repeats of PictureTokens of at least 1"),
        (("<picture>", 4), {}, TypeError, "picture_token of PictureTokens as an int"),
    ],
)
def test_arguments_out_of_range(arguments, options, error, message):
    tokens, _, pictures = documents(3)
    with pytest.raises(error, match=message):
        fl.PictureTokens(corpus_of(tokens, pictures), *arguments, **options)
