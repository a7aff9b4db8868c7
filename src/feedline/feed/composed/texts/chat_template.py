"""Conversations as texts, and which of their characters are of the assistant's turns.

A chat template is a program in Jinja's language, of a model or its tokenizer. If it has the tag ``generation``, that
says which characters are the assistant's, in two runs. Else a turn's characters are found by running it for the
messages before and up to the turn: both texts have to begin the text of the whole conversation. Cost: two runs for each
of the assistant's turns, about 0.1 ms each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import DataError
from feedline.feed.composed.texts.library_tokenizer import library_tokenizer
from feedline.feed.composed.texts.template_program import TemplateProgram
from feedline.feed.files.paths import open_regular

_CONFIG, _JINJA, _TOKENIZER = "tokenizer_config.json", "chat_template.jinja", "tokenizer.json"
_ASSISTANT = "assistant"

# A content that no conversation has.
_OTHER_CONTENT = "\ufdd0"


class Conversation(NamedTuple):
    """A conversation as a template renders it.

    Attributes:
        text: the whole text.
        turns: [start, stop) of the assistant's turns, in characters of the text, ascending.
    """

    text: str
    turns: list[tuple[int, int]]


class ChatTemplate:
    """A tokenizer of conversations, for `Tokenized`: a chat template, and the tokenizer of its texts.

    A conversation is a list of messages, ``{"role": "user", "content": "Hello"}``, whose text the template determines.
    Content and everything else reaches it as it is, and a template that would write a list, an object or None is an
    error. In a template with the tag ``generation``, as transformers has it, an assistant's turn is what stands in it.
    Otherwise it begins after the template's generation prompt, and ends where the text of the messages up to it ends.
    The texts of special tokens become these tokens wherever they stand, also in a message.

    Args:
        tokenizer: folder with a ``tokenizer.json``, or path of one, or a `tokenizers.Tokenizer`.
            The ``tokenizer_config.json`` beside it may add tokens.
        template: the template in Jinja's language. None: ``chat_template.jinja``, or ``chat_template`` in the
            ``tokenizer_config.json`` beside the tokenizer, which also has tokens that templates name, as
            ``bos_token``. The variable ``strftime_now`` is undefined, as a date would change the tokens.

    Attributes:
        tokenizer: the `tokenizers.Tokenizer`.
        template: the template.
        tagged: whether it has the tag ``generation``.

    Raises:
        DataError: tokenizer, configuration or template cannot be read.
        ModuleNotFoundError: the library tokenizers or jinja2 is not installed.
        ValueError: there is no template, or it names a token that the configuration does not have.
    """

    def __init__(self, tokenizer: str | os.PathLike[str] | Any, template: str | None = None) -> None:
        folder = None
        if isinstance(tokenizer, (str, os.PathLike)):
            path = Path(tokenizer)
            folder = path if path.is_dir() else path.parent
            tokenizer = folder / _TOKENIZER if path.is_dir() else path
        self.tokenizer = library_tokenizer(tokenizer)
        # It adds special tokens, which the template writes, or moves the offsets of tokens past their blanks.
        self.tokenizer.post_processor = None
        config = {} if folder is None else _configuration(folder)
        if folder is not None:
            _add_tokens(self.tokenizer, config.get("added_tokens_decoder"), folder / _CONFIG)
        self._tokens = {name: token for name, token in map(_token, config.items()) if token is not None}
        self.template = _template_of(config, folder) if template is None else template
        self._program = TemplateProgram(self.template, self._tokens)
        self.tagged = self._program.marks

    def __getstate__(self) -> dict[str, Any]:
        """Return what can be pickled: all but the compiled template."""
        return {name: value for name, value in vars(self).items() if name != "_program"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Compile the template again."""
        vars(self).update(state)
        self._program = TemplateProgram(self.template, self._tokens)

    @property
    def identity(self) -> str:
        """A text that identifies tokenizer, template and its tokens."""
        return f"{self.tokenizer.to_str()}\0{self.template}\0{sorted(self._tokens.items())}"

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> Conversation:
        """Return the text of a conversation.

        Args:
            messages: dictionaries with a role, and a content or tool calls.
            tools: the tools that the model may call, for the template's variable ``tools``. None: none.

        Raises:
            ValueError: the messages are no conversation, the template refuses them or would write what is no text, or
                the text of the first messages does not begin the text of all.
        """
        _check(messages)
        if self.tagged:
            return Conversation(*self._program.generated(messages, tools))
        text = self._program.run(messages, tools)
        turns = []
        for i, message in enumerate(messages):
            if message["role"] == _ASSISTANT:
                start = self._start(messages, tools, i, text)
                turns.append((start, self._prefix(messages, tools, i + 1, text)))
        return Conversation(text, turns)

    def _start(self, messages: Sequence[Mapping[str, Any]], tools: Any, at: int, text: str) -> int:
        """Return the number of characters before the turn ``at``."""
        try:
            return self._prefix(messages, tools, at, text, prompt=True)
        except ValueError as error:
            if at:
                raise
            start = self._start_of_first(messages[0], tools)
            if start is None:
                raise ValueError(
                    "expected a chat template that shows where the turn of an assistant who begins a conversation "
                    f"starts, by its generation prompt or by {{% generation %}}: {error}"
                ) from error
            return start

    def _start_of_first(self, message: Mapping[str, Any], tools: Any) -> int | None:
        """Return the number of characters before the content of a conversation's first message, or None if the
        generation prompt does not end there.

        Many templates cannot write a conversation of no messages, or write a system's message into it.
        """
        text, prompted = (self._program.run([message], tools, prompt=prompt) for prompt in (False, True))
        changed_text = self._program.run([{**message, "content": _OTHER_CONTENT}], tools)
        pairs = enumerate(zip(text, changed_text, strict=False))
        start = next((at for at, (character, another) in pairs if character != another), len(text))
        prompt = prompted.removeprefix(text)
        return start if prompt and prompt != prompted and text[:start].endswith(prompt) else None

    def _prefix(
        self, messages: Sequence[Mapping[str, Any]], tools: Any, count: int, text: str, *, prompt: bool = False
    ) -> int:
        """Return the number of characters of the first ``count`` messages, and of the generation prompt after them."""
        if count == len(messages) and not prompt:
            return len(text)
        prefix = self._program.run(messages[:count], tools, prompt=prompt)
        if not text.startswith(prefix):
            at = next(i for i in range(len(prefix)) if text[i : i + 1] != prefix[i])
            raise ValueError(
                f"expected a chat template whose text of the first {count} messages"
                f"{' and the generation prompt' if prompt else ''} begins the text of all {len(messages)}, got "
                f"{prefix[at : at + 20]!r} for {text[at : at + 20]!r} at character {at}; pass a template= that writes "
                "a message the same whatever follows it, or that says what the assistant's turns are by "
                "{% generation %}"
            )
        return len(prefix)


def _check(messages: Any) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ValueError(f"expected a list of messages, got {type(messages).__name__}: {str(messages)[:40]}")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f'expected message {i} as an object with a "role", got {str(message)[:60]}')
        content = message.get("content")
        has_content = "content" in message or message.get("tool_calls")
        if not has_content or not isinstance(content, (str, list, type(None))):
            raise ValueError(f'expected "content" of message {i} as a text, got {str(content)[:40]}')


def _configuration(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    if not path.exists():
        return {}
    try:
        config = json.loads(_read(path))
    except ValueError as error:
        raise DataError(f"expected a JSON object: {error}", path=str(path)) from error
    if not isinstance(config, dict):
        raise DataError(f"expected a JSON object, got {type(config).__name__}", path=str(path))
    return config


def _add_tokens(tokenizer: Any, added: Any, path: Path) -> None:
    """Add the tokens that only the configuration has.

    Raises:
        DataError: a token would not have the id that the configuration has.
    """
    for number, entry in sorted((added if isinstance(added, dict) else {}).items(), key=lambda pair: int(pair[0])):
        content = entry["content"]
        if tokenizer.token_to_id(content) is None:
            (tokenizer.add_special_tokens if entry.get("special") else tokenizer.add_tokens)([content])
        if tokenizer.token_to_id(content) != int(number):
            raise DataError(
                f"expected {content!r} as token {number}, got {tokenizer.token_to_id(content)} from the tokenizer",
                path=str(path),
            )


def _template_of(config: Mapping[str, Any], folder: Path | None) -> str:
    """Return the template of a tokenizer.

    Raises:
        ValueError: there is none.
    """
    if folder is not None and (folder / _JINJA).exists():
        return _read(folder / _JINJA)
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = by_name.get("default")
    if not isinstance(template, str):
        where = "no folder" if folder is None else f"none in {folder / _JINJA} and {folder / _CONFIG}"
        raise ValueError(f"expected a chat template beside the tokenizer, got {where}; pass template=")
    return template


def _read(path: Path) -> str:
    try:
        with open_regular(path) as file:
            text: str = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"expected a text in UTF-8: {error}", path=str(path)) from error
    return text


def _token(entry: tuple[str, Any]) -> tuple[str, str | None]:
    """Return a variable of templates and its token, from an entry of a configuration. None if it is no token."""
    name, value = entry
    if isinstance(value, dict):
        value = value.get("content")
    return name, value if name.endswith("_token") and isinstance(value, str) else None
