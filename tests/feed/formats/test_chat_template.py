"""Conversations to tokens: the assistant's turns against a slow oracle, for templates of several styles."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|/header|>", "<|eot|>", "[INST]", "[/INST]"]

# Templates of the styles of ChatML, Llama 3 and Mistral, where the system's message is part of the first of the user's.
CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|header|>' + message['role'] + '<|/header|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\\n\\n' }}{% endif %}"""
MISTRAL = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}
  {%- set system = messages[0].content + '\\n\\n' %}{% set turns = messages[1:] %}
{%- else %}
  {%- set system = '' %}{% set turns = messages %}
{%- endif %}
{%- for message in turns %}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
  {%- if message.role == 'user' %}
    {{- '[INST] ' + (system if loop.first else '') + message.content + '[/INST]' }}
  {%- else %}
    {{- ' ' + message.content + eos_token }}
  {%- endif %}
{%- endfor %}"""
# The blank before a content may be a token of its own, or part of the content's first one.
SPOKEN = """\
{%- for message in messages %}{{ message.role + ': ' + message.content + eos_token }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""
TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "mistral": MISTRAL, "spoken": SPOKEN}


def spelled(style, messages):
    """The pieces of a conversation, with whether each is of the assistant's turns: written by hand, without Jinja."""
    pieces = [] if style in ("chatml", "spoken") else [("<s>", False)]
    system = ""
    for message in messages:
        role, content = message["role"], message["content"]
        mine = role == "assistant"
        if style == "chatml":
            pieces += [(f"<|im_start|>{role}\n", False), (f"{content}<|im_end|>\n", mine)]
        elif style == "llama":
            pieces += [(f"<|header|>{role}<|/header|>\n\n", False), (f"{content.strip()}<|eot|>", mine)]
        elif style == "spoken":
            pieces += [(f"{role}: ", False), (f"{content}</s>", mine)]
        elif role == "system":
            system = f"{content}\n\n"
        else:
            pieces.append((f" {content}</s>", True) if mine else (f"[INST] {system}{content}[/INST]", False))
            system = ""
    return pieces


@pytest.fixture(scope="module")
def tokenizer():
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["a river of stone, the wind of the river"] * 9, trainer)
    return bpe


@pytest.fixture(scope="module")
def as_of_models(tokenizer):
    """The same tokens, with a step that adds one to each text, and moves offsets past blanks."""
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    begin = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", copy.token_to_id("<s>"))])
    copy.post_processor = tokenizers.processors.Sequence([tokenizers.processors.ByteLevel(trim_offsets=True), begin])
    return copy


@pytest.fixture(scope="module")
def folder(as_of_models, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    as_of_models.save(str(path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": CHATML}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


TEXT = st.text(st.sampled_from([*"ab \n.é", "🙂", "学", "\u0301"]), max_size=9)


@st.composite
def conversations(draw):
    messages = [{"role": "system", "content": draw(TEXT)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": draw(TEXT)})
        messages.append({"role": "assistant", "content": draw(TEXT)})
    return messages[: -1 if draw(st.booleans()) else None]


def corpus_of(conversations):
    texts = [json.dumps(messages).encode() for messages in conversations]
    return fl.ArrayDeserializer(messages=texts)


def tokens_and_marks(corpus):
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1) as source:
        return [
            pair
            for m in source.minibatches(1000)
            for pair in zip(m["tokens"].sequences(), m["trained"].sequences(), strict=True)
        ]


@pytest.mark.parametrize("style", TEMPLATES)
@pytest.mark.parametrize("append", [None, "</s>"])
@given(st.lists(conversations(), min_size=1, max_size=4))
def test_labels_of_the_assistant_are_those_of_the_oracle(tokenizer, folder, style, append, talks):
    chat = fl.ChatTemplate(folder, TEMPLATES[style])
    delivered = tokens_and_marks(fl.Tokenized(corpus_of(talks), chat, text="messages", append=append))
    for messages, (tokens, trained) in zip(talks, delivered, strict=True):
        pieces = spelled(style, messages)
        owners = [mine for text, mine in pieces for _ in text]
        encoding = tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False)
        mine = [owners[start] for start, _ in encoding.offsets]
        ids = list(encoding.ids)
        if append is not None:
            ids, mine = [*ids, tokenizer.token_to_id(append)], [*mine, mine[-1]]
        assert tokens.tolist() == ids
        assert trained.tolist() == [*mine[1:], False]
        assert trained.dtype == bool


def test_turns_are_characters_of_the_text(folder):
    messages = [
        {"role": "user", "content": "é🙂"},
        {"role": "assistant", "content": "ja"},
        {"role": "user", "content": ""},
    ]
    text, turns = fl.ChatTemplate(folder).render(messages)
    assert [text[start:stop] for start, stop in turns] == ["ja<|im_end|>\n"]


@pytest.mark.parametrize("method", ["best-fit", "split"])
def test_marks_are_packed_with_their_tokens(folder, method):
    rng = np.random.default_rng(0)
    talks = [
        [
            {"role": "user", "content": "a" * rng.integers(0, 20)},
            {"role": "assistant", "content": "b" * rng.integers(1, 30)},
        ]
        for _ in range(60)
    ]
    corpus = fl.Tokenized(corpus_of(talks), fl.ChatTemplate(folder), text="messages")
    whole = tokens_and_marks(corpus)
    trained = untrained = 0
    with fl.MinibatchSource(fl.Packed(corpus, 32, method=method), seed=1, max_sweeps=1) as source:
        for minibatch in source.minibatches(128):
            tokens, marks, segment, positions, labels = (
                minibatch[name].rows.reshape(-1, 32) for name in ("tokens", "trained", "segment", "positions", "labels")
            )
            assert not marks[segment == 0].any()
            for row, documents in enumerate(minibatch["document"].sequences()):
                for number, document in enumerate(documents.tolist(), start=1):
                    at = segment[row] == number
                    ids, mask = whole[document & (2**32 - 1)]
                    places = positions[row][at]
                    assert tokens[row][at].tolist() == ids[places].tolist()
                    assert marks[row][at].tolist() == mask[places].tolist()
            assert (labels[marks] != -100).all()
            trained, untrained = trained + int(marks.sum()), untrained + int((~marks).sum())
    assert trained == sum(int(mask.sum()) for _, mask in whole)
    assert untrained > trained > 0


def test_a_folder_has_the_template_and_its_tokens(folder, tokenizer, tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    assert fl.ChatTemplate(folder).template == CHATML
    assert fl.ChatTemplate(folder / "tokenizer.json").template == CHATML
    assert fl.ChatTemplate(folder, LLAMA).render(messages).text.startswith("<s><|header|>user")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ eos_token }}{{ messages | tojson }}")
    assert fl.ChatTemplate(tmp_path).render(messages).text == '</s>[{"role": "user", "content": "hi"}]'
    (tmp_path / "chat_template.jinja").unlink()
    named = {
        "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages }}"}]
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    assert fl.ChatTemplate(tmp_path).template == "{{ messages }}"
    corpus = corpus_of([messages])
    digests = {fl.Tokenized(corpus, chat).digest() for chat in (fl.ChatTemplate(folder), fl.ChatTemplate(folder))}
    digests |= {fl.Tokenized(corpus, fl.ChatTemplate(tokenizer, text)).digest() for text in (CHATML, CHATML + " ")}
    assert len(digests) == 3


def test_a_pickled_copy_has_the_same_tokens(folder):
    talk = [{"role": "user", "content": "wind"}, {"role": "assistant", "content": "a river"}]
    corpus = fl.Tokenized(corpus_of([talk]), fl.ChatTemplate(folder), text="messages")
    copy = pickle.loads(pickle.dumps(corpus))
    pairs, again = tokens_and_marks(corpus), tokens_and_marks(copy)
    assert [[array.tolist() for array in pair] for pair in again] == [[a.tolist() for a in pair] for pair in pairs]
    assert copy.digest() == corpus.digest()


def test_the_path_of_a_template_is_no_template(folder):
    with pytest.raises(ValueError, match=r"writes `messages`, got 'template\.jinja'; pass the template itself"):
        fl.ChatTemplate(folder, "template.jinja")


BROKEN = [
    b"no json",
    b'{"role": "user"}',
    b"[]",
    b'["text"]',
    b'[{"role": 3, "content": ""}]',
    b'[{"role": "user"}]',
    b'[{"role": "user", "content": null}]',
    b'[{"role": "assistant", "content": "first"}]',
]


def test_a_broken_record_is_one_unreadable_sequence(folder, tmp_path):
    good = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ja"}]
    texts = [json.dumps(good).encode(), *BROKEN, json.dumps(good).encode()]
    corpus = fl.Tokenized(fl.ArrayDeserializer(messages=texts), fl.ChatTemplate(folder, MISTRAL))
    chunk = corpus.read(0)
    assert sorted(chunk.errors) == list(range(1, len(BROKEN) + 1))
    assert all("expected a conversation" in str(error) for error in chunk.errors.values())
    assert "roles must alternate" in str(chunk.errors[len(BROKEN)])
    listed = tmp_path / "bad.jsonl"
    with fl.MinibatchSource(fl.Packed(corpus, 64), max_sweeps=1, on_error=fl.Quarantine(listed)) as source:
        minibatches = list(source.minibatches(64))
    assert sum(int((m["segment"].rows == 2).any()) for m in minibatches) == 1
    assert len(listed.read_text().splitlines()) == len(BROKEN)


# What is written for a message depends on what follows it, as where thoughts of earlier turns are left out.
FORGETFUL = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + ('' if loop.last else ' earlier') + message.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant' }}{% endif %}"""


def test_a_template_that_writes_a_turn_in_two_ways_is_an_error(folder):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ja"}]
    with pytest.raises(
        ValueError, match="first 1 messages and the generation prompt begins the text of all 2, got 'hi<"
    ):
        fl.ChatTemplate(folder, FORGETFUL).render(messages)


def test_tokens_that_only_the_configuration_has_are_added(folder, tokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    size = tokenizer.get_vocab_size()
    added = {str(size + 1): {"content": "<b>"}, str(size): {"content": "<a>", "special": True}, "0": {"content": "<s>"}}
    config = {"chat_template": "{{ messages[0].content }}", "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    corpus = fl.Tokenized(corpus_of([[{"role": "user", "content": "<b><a><s>"}]]), fl.ChatTemplate(tmp_path))
    assert [tokens.tolist() for tokens, _ in tokens_and_marks(corpus)] == [[size + 1, size, 0]]
    config["added_tokens_decoder"] = {str(size + 7): {"content": "<c>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(fl.DataError, match=f"'<c>' as token {size + 7}, got {size}"):
        fl.ChatTemplate(tmp_path)


def test_templates_that_cannot_work_are_reported(folder, tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="pass template="):
        fl.ChatTemplate(tmp_path)
    with pytest.raises(ValueError, match="got no folder"):
        fl.ChatTemplate(tokenizer)
    with pytest.raises(ValueError, match="got no bos_token, eos_token"):
        fl.ChatTemplate(tokenizer, MISTRAL)
    with pytest.raises(ValueError, match="Jinja's language"):
        fl.ChatTemplate(tokenizer, "{% for %}")
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(fl.DataError, match="expected a JSON object"):
        fl.ChatTemplate(tmp_path)
    corpus, chat = corpus_of([[]]), fl.ChatTemplate(folder)
    with pytest.raises(ValueError, match="special=False"):
        fl.Tokenized(corpus, chat, special=True)
    with pytest.raises(fl.SchemaError, match="no stream `trained`"):
        fl.Tokenized(corpus, chat, tokens="trained")
