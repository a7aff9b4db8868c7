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
    b'[{"role": "user", "content": 3}]',
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


# ---- the tag around what the model generates ------------------------------------------------------------

TAGGED = {
    "chatml": """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{% generation %}
{{- message.content + '<|im_end|>' }}
{%- endgeneration %}
{%- else %}{{- message.content + '<|im_end|>' }}{% endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}""",
    # What is written depends on what follows, and a macro and a block capture the text.
    "forgetful": """\
{%- macro turn(message, last) %}{{ message.content | trim }}{{ '<|eot|>' if last else '</s>' }}{% endmacro %}
{%- for message in messages %}
  {%- set before %}[INST]{{ message.role ~ ':' }}{% endset %}{{- before }}
  {%- if message.role == 'assistant' %}{% generation %}{{ turn(message, loop.last) }}{% endgeneration %}
  {%- else %}{{ turn(message, loop.last) }}{% endif %}
{%- endfor %}""",
}


def tagged_pieces(style, messages):
    """The pieces of a conversation, with whether each is generated: written by hand, without Jinja."""
    pieces = []
    for i, message in enumerate(messages):
        role, content, mine = message["role"], message["content"], message["role"] == "assistant"
        if style == "chatml":
            # After the tag itself, Jinja takes a newline away.
            pieces += [(f"<|im_start|>{role}\n", False), (f"{content}<|im_end|>", mine), ("\n", False)]
        else:
            end = "<|eot|>" if i + 1 == len(messages) else "</s>"
            pieces += [(f"[INST]{role}:", False), (content.strip() + end, mine)]
    return pieces


@pytest.mark.parametrize("style", TAGGED)
@given(st.lists(conversations(), min_size=1, max_size=4))
def test_labels_are_those_that_the_template_tags(tokenizer, folder, style, talks):
    chat = fl.ChatTemplate(folder, TAGGED[style])
    assert chat.tagged
    assert not fl.ChatTemplate(folder).tagged
    delivered = tokens_and_marks(fl.Tokenized(corpus_of(talks), chat))
    for messages, (tokens, trained) in zip(talks, delivered, strict=True):
        pieces = tagged_pieces(style, messages)
        owners = [mine for text, mine in pieces for _ in text]
        encoding = tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=False)
        assert tokens.tolist() == encoding.ids
        mine = [any(owners[start:stop]) for start, stop in encoding.offsets]
        assert trained.tolist() == [*mine[1:], False]


def test_a_tag_within_another_is_one_turn(folder):
    template = "{% for m in messages %}{{ m.role }}{% generation %}a{% generation %}{{ m.content }}{% endgeneration %}b"
    template += "{% endgeneration %}c{% endfor %}"
    text, turns = fl.ChatTemplate(folder, template).render([{"role": "user", "content": "x"}] * 2)
    assert text == "useraxbcuseraxbc"
    assert [text[start:stop] for start, stop in turns] == ["axb", "axb"]


def test_a_template_that_changes_what_is_tagged_is_an_error(folder):
    talk = [{"role": "assistant", "content": " a "}]
    template = "{% set x %}{% generation %}{{ messages[0].content }}{% endgeneration %}{% endset %}{{ x | trim }}"
    with pytest.raises(ValueError, match="got one that changes it later"):
        fl.ChatTemplate(folder, template).render(talk)
    template = "{% generation %}{{ messages[0].content }}{% endgeneration %}"
    assert fl.ChatTemplate(folder, template).render(talk).turns == [(0, 3)]
    with pytest.raises(ValueError, match="characters U\\+FDD0"):
        fl.ChatTemplate(folder, template).render([{"role": "assistant", "content": "a\ufdd0"}])


@pytest.mark.frameworks("transformers")
@pytest.mark.parametrize("style", TAGGED)
def test_tagged_labels_are_those_of_transformers(tokenizer, folder, style):
    import transformers

    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    theirs.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    rng = np.random.default_rng(4)
    words = ["a river", " of", "stone\n", "é", "the wind ", "b"]
    talks = [
        [
            {"role": role, "content": "".join(rng.choice(words, rng.integers(1, 6)))}
            for role in (["system"] if rng.random() < 0.5 else []) + ["user", "assistant"] * int(rng.integers(1, 4))
        ]
        for _ in range(50)
    ]
    delivered = tokens_and_marks(fl.Tokenized(corpus_of(talks), fl.ChatTemplate(folder, TAGGED[style])))
    for messages, (tokens, trained) in zip(talks, delivered, strict=True):
        expected = theirs.apply_chat_template(
            messages,
            chat_template=TAGGED[style],
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert tokens.tolist() == list(expected["input_ids"])
        assert trained.tolist() == [bool(mark) for mark in [*expected["assistant_masks"][1:], 0]]


# ---- content that is no text ------------------------------------------------------------------------------

PARTS = """\
{%- for message in messages %}{{ '<' + message.role + '>' }}
{%- if message.content is string %}{{ message.content }}
{%- elif message.content is not none %}
  {%- for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}
{%- endif %}
{%- if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}
{%- endfor %}"""


def test_parts_and_none_reach_the_template(folder):
    call = [{"function": {"name": "add", "arguments": {"a": [1, None]}}}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": call},
        {"role": "assistant", "content": "c"},
    ]
    text, _ = fl.ChatTemplate(folder, PARTS).render(messages)
    assert text == f"<user>ab<assistant>{json.dumps(call)}<assistant>c"


@pytest.mark.parametrize(
    "written",
    [
        "{{ content }}",
        "{{ 'a' ~ content }}",
        "{{ content ~ 'a' }}",
        "{{ content | trim }}",
        "{{ content | string }}",
        "{{ content | upper }}",
        "{{ content | replace('a', 'b') }}",
        "{{ [content] | join }}",
        "{{ '%s' | format(content) }}",
        "{{ 'a' + content }}",
        "{{ content + 'a' }}",
        "{% macro show(it) %}{{ it }}{% endmacro %}{{ show(content) }}",
        "{% set kept %}{{ content }}{% endset %}{{ kept }}",
        "{% filter upper %}{{ content }}{% endfilter %}",
    ],
)
@pytest.mark.parametrize("content", [None, [{"type": "text", "text": "a"}]], ids=["none", "parts"])
def test_no_template_writes_python_text(folder, written, content):
    template = "{% set content = messages[0].content %}" + written
    chat = fl.ChatTemplate(folder, template)
    if not (content is None and "format" in written):
        good = [{"role": "user", "content": "text"}]
        corpus = fl.Tokenized(corpus_of([good, [{"role": "user", "content": content}], good]), chat)
        chunk = corpus.read(0)
        assert list(chunk.errors) == [1]
        assert chunk.errors[1].sequence == 1
        assert "expected messages that the chat template accepts" in str(chunk.errors[1])
    assert "text" in chat.render([{"role": "user", "content": "text"}]).text.lower() or "replace" in written


def test_an_object_is_not_written_either(folder):
    call = {"role": "user", "tool_calls": [{"function": {"arguments": {"a": 1}}}]}
    for written in (
        "{{ c.arguments }}",
        "{{ 'x' ~ c.arguments }}",
        "{{ [c.arguments] | join }}",
        "{{ [c] }}",
        "{{ c }}",
    ):
        chat = fl.ChatTemplate(folder, "{% set c = messages[0].tool_calls[0].function %}" + written)
        with pytest.raises(ValueError, match=r"got (an object|a list)"):
            chat.render([call])
    chat = fl.ChatTemplate(folder, "{% set c = messages[0].tool_calls[0].function %}{{ c | tojson }}")
    assert chat.render([call]).text == '{"arguments": {"a": 1}}'


# ---- the assistant first ----------------------------------------------------------------------------------

# Writes a system's message if there is none, and cannot write a conversation of no messages.
DEFAULTED = """\
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


@given(st.lists(TEXT, min_size=1, max_size=4), st.sampled_from(["chatml", "llama", "spoken", "defaulted"]))
def test_a_conversation_may_begin_with_the_assistant(folder, contents, style):
    messages = [{"role": ("assistant", "user")[i % 2], "content": content} for i, content in enumerate(contents)]
    template = DEFAULTED if style == "defaulted" else TEMPLATES[style]
    text, turns = fl.ChatTemplate(folder, template).render(messages)
    pieces = spelled("chatml" if style == "defaulted" else style, messages)
    if style == "defaulted":
        pieces = [("<|im_start|>system\nBe kind.<|im_end|>\n", False), *pieces]
    assert text == "".join(piece for piece, _ in pieces)
    ends = np.cumsum([0, *(len(piece) for piece, _ in pieces)]).tolist()
    assert turns == [(ends[i], ends[i + 1]) for i, (_, mine) in enumerate(pieces) if mine]


def test_a_template_without_a_prompt_cannot_tell_where_the_assistant_begins(folder):
    chat = fl.ChatTemplate(folder, "{{ messages[0].role }}: {{ messages[0].content }}")
    with pytest.raises(ValueError, match="an assistant who begins a conversation starts, by its generation prompt"):
        chat.render([{"role": "assistant", "content": "hi"}])


# ---- tools, and columns of structs --------------------------------------------------------------------------

TOOLED = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"a": "int"}}}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_tools_of_a_record_reach_the_template(folder, tokenizer, tmp_path, form):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ja"}]
    records = [{"messages": talk, "tools": [TOOL]}, {"messages": talk, "tools": []}, {"messages": talk, "tools": None}]
    path = tmp_path / f"data.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(pytest.importorskip("pyarrow").Table.from_pylist(records), path)
    streams = {"messages": fl.Stream(dtype="bytes"), "tools": fl.Stream(dtype="bytes", missing=b"")}
    corpus = fl.Tokenized(fl.open_corpus(path, streams=streams), fl.ChatTemplate(folder, TOOLED))
    texts = [tokenizer.decode(tokens.tolist(), skip_special_tokens=False) for tokens, _ in tokens_and_marks(corpus)]
    plain = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nja<|im_end|>\n"
    assert texts == [json.dumps([TOOL]) + plain, plain, plain]
    alone = fl.open_corpus(path, streams={"messages": fl.Stream(dtype="bytes")})
    assert fl.Tokenized(alone, fl.ChatTemplate(folder, TOOLED)).digest() != corpus.digest()
    as_text = fl.ArrayDeserializer(messages=[json.dumps(talk).encode()] * 3, tools=[json.dumps([TOOL]), "", "{"])
    chunk = fl.Tokenized(as_text, fl.ChatTemplate(folder, TOOLED), text="messages").read(0)
    assert list(chunk.errors) == [2]
    assert tokenizer.decode(chunk["tokens"].sequences()[0].tolist(), skip_special_tokens=False) == texts[0]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_columns_of_structs_are_conversations(folder, tmp_path, form):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(8)
    talks = [
        [{"role": role, "content": '"\n\\é🙂' * int(rng.integers(0, 3))} for role in ["user", "assistant"] * k]
        for k in rng.integers(1, 4, 30).tolist()
    ]
    table = pa.table({"messages": talks})
    if form == "parquet":
        pq.write_table(table, tmp_path / "data.parquet", row_group_size=7)
    else:
        with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    delivered = [
        tokens_and_marks(
            fl.Tokenized(
                fl.open_corpus(tmp_path / f"data.{kind}", streams={"messages": fl.Stream(dtype="bytes")}),
                fl.ChatTemplate(folder),
            )
        )
        for kind in ("jsonl", form)
    ]
    assert [[a.tolist() for a in pair] for pair in delivered[0]] == [
        [a.tolist() for a in pair] for pair in delivered[1]
    ]
    assert sum(trained.sum() for _, trained in delivered[0]) > 0


# ---- what is left out ---------------------------------------------------------------------------------------


def test_conversations_longer_than_a_row_are_counted(folder, caplog):
    talks = [[{"role": "user", "content": "ab" * n}, {"role": "assistant", "content": "c"}] for n in range(0, 40, 2)]
    corpus = fl.Tokenized(corpus_of(talks), fl.ChatTemplate(folder))
    lengths = [len(tokens) for tokens, _ in tokens_and_marks(corpus)]
    longer = sum(length > 40 for length in lengths)
    assert 0 < longer < len(talks)
    packed = fl.Packed(corpus, 40, long="drop")
    assert packed.dropped == 0
    for _ in range(2):  # each once, however often it is read
        with fl.MinibatchSource(packed, max_sweeps=2) as source:
            assert sum(m["document"].num_samples for m in source.minibatches(80)) == 2 * (len(talks) - longer)
        assert packed.dropped == longer
    assert sum("longer than a row are left out" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("bad", [0, 2])
def test_a_corpus_of_which_everything_is_left_out_is_an_error(folder, tmp_path, bad):
    texts = [json.dumps([{"role": "user", "content": "ab" * 40}]).encode()] * 5 + [b"{"] * bad
    corpus = fl.Tokenized(fl.ArrayDeserializer(messages=texts), fl.ChatTemplate(folder))
    quarantine = fl.Quarantine(tmp_path / "bad.jsonl")
    source = fl.MinibatchSource(fl.Packed(corpus, 16, long="drop"), on_error=quarantine)
    with source, pytest.raises(fl.DataError, match="at most 16 tokens, got none: 5 are longer and left out"):
        source.next_minibatch(16)
