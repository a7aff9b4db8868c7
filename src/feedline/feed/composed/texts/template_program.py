"""Chat templates as programs: Jinja's sandbox with the settings, functions and tags for which models' templates are
written.

What is no text is never written as Python would show it: printing None, a list or an object is an error. Between
``{% generation %}`` and ``{% endgeneration %}`` stands what the model generates. These places are found by marks, which
a second run without them checks.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from feedline.errors import install_line

#: Characters that Unicode reserves for uses within a program, which stand around what the model generates.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_MARKS = re.compile("([\ufdd0\ufdd1])")

# Filters that turn their first argument into a text.
_TEXT_FILTERS = (
    *("capitalize", "center", "e", "escape", "forceescape", "format", "indent", "lower", "replace", "safe"),
    *("string", "striptags", "title", "trim", "truncate", "upper", "urlencode", "urlize", "wordcount", "wordwrap"),
)
_PRINTED = "printed"


class JSONList(list[Any]):
    """A list of a conversation. It has no text but its JSON."""

    def __str__(self) -> NoReturn:
        raise _no_text("a list")

    __repr__ = __str__

    def __format__(self, spec: str) -> NoReturn:
        raise _no_text("a list")


class JSONObject(dict[str, Any]):
    """An object of a conversation. It has no text but its JSON."""

    def __str__(self) -> NoReturn:
        raise _no_text("an object")

    __repr__ = __str__

    def __format__(self, spec: str) -> NoReturn:
        raise _no_text("an object")


class TemplateProgram:
    """A chat template that can be run.

    Args:
        template: the template in Jinja's language.
        tokens: tokens by the variable that names them, such as ``bos_token``.

    Attributes:
        marks: whether the template says what the model generates.

    Raises:
        ModuleNotFoundError: jinja2 is not installed.
        ValueError: the template has an error, or names a token that there is none of.
    """

    def __init__(self, template: str, tokens: Mapping[str, str]) -> None:
        try:
            import jinja2.meta
            import jinja2.nodes
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"jinja2 is not installed; run: {install_line('tokenizers')}") from error
        plain, marking = _environment(marking=False), _environment(marking=True)
        try:
            tree = plain.parse(template)
            self.marks = any(tree.find_all(jinja2.nodes.ExtensionAttribute))
            named = jinja2.meta.find_undeclared_variables(tree)
            self._plain = plain.from_string(_checking_texts(tree))
            self._marking = marking.from_string(_checking_texts(marking.parse(template))) if self.marks else None
        except jinja2.TemplateError as error:
            raise ValueError(f"expected a chat template in Jinja's language: {error}") from error
        if "messages" not in named:
            raise ValueError(
                f"expected a chat template that writes `messages`, got {template[:60]!r}; pass the template itself, "
                "not the path of its file"
            )
        # Jinja writes nothing for an undefined variable, and the model would never see its token.
        missing = [name for name in sorted(named) if name.endswith("_token") and name not in tokens]
        if missing:
            raise ValueError(
                f"expected the tokens that the chat template names, got no {', '.join(missing)}; pass the folder of "
                "the tokenizer, with its tokenizer_config.json, or a template with the token itself"
            )
        self._tokens = dict(tokens)

    def run(self, messages: Sequence[Any], tools: Any, *, prompt: bool = False) -> str:
        """Return the text of messages.

        Args:
            messages: the messages.
            tools: the tools that the model may call. None: none.
            prompt: whether the generation prompt follows.

        Raises:
            ValueError: the template refuses them, or writes what is no text.
        """
        return self._render(self._plain, messages, tools, prompt)

    def generated(self, messages: Sequence[Any], tools: Any) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of messages, and [start, stop) of what the model generates. Only for templates with marks.

        Raises:
            ValueError: see `run`, or marks change the text.
        """
        plain, marked = self.run(messages, tools), self._render(self._marking, messages, tools, False)
        turns: list[tuple[int, int]] = []
        pieces: list[str] = []
        size = level = start = 0
        for piece, mark in _split(marked):
            pieces.append(piece)
            size += len(piece)
            if mark == _BEGIN:
                start = start if level else size
                level += 1
            elif mark == _END:
                level -= 1
                if level == 0:
                    turns.append((start, size))
        if "".join(pieces) != plain or level:
            raise ValueError(
                "expected a chat template that writes what stands between {% generation %} and {% endgeneration %} as "
                "it is, got one that changes it later, or messages with the characters U+FDD0 or U+FDD1"
            )
        return plain, turns

    def _render(self, program: Any, messages: Sequence[Any], tools: Any, prompt: bool) -> str:
        variables = {"messages": _guarded(messages), "tools": _guarded(tools), "documents": None}
        try:
            text: str = program.render(**variables, add_generation_prompt=prompt, **self._tokens)
        except Exception as error:  # a template is a program, which may raise anything
            raise ValueError(f"expected messages that the chat template accepts: {error!r}") from error
        return text


def _split(marked: str) -> list[tuple[str, str]]:
    """Return the pieces of a text, each with the mark after it, which is empty at the end."""
    pieces = _MARKS.split(marked)
    return list(zip(pieces[::2], [*pieces[1::2], ""], strict=True))


def _guarded(value: Any) -> Any:
    """Return a value of JSON whose lists and objects have no text."""
    if isinstance(value, Mapping):
        return JSONObject((key, _guarded(item)) for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return JSONList(_guarded(item) for item in value)
    return value


def _environment(*, marking: bool) -> Any:
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """The tag around what the model generates."""

        tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

        def _written(self, caller: Callable[[], str]) -> str:
            return f"{_BEGIN}{caller()}{_END}" if marking else caller()

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation], finalize=_printed
    )
    for name in _TEXT_FILTERS:
        environment.filters[name] = _checking_filter(environment.filters[name])
    environment.filters["join"] = _checking_join(environment.filters["join"])
    environment.filters[_PRINTED] = _printed
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment


def _checking_texts(tree: Any) -> Any:
    """Return a template whose operators ``~`` check that they join texts."""
    import jinja2.nodes

    no_arguments: tuple[Any, ...] = ([], [], None, None)
    for joined in tree.find_all(jinja2.nodes.Concat):
        joined.nodes = [jinja2.nodes.Filter(node, _PRINTED, *no_arguments) for node in joined.nodes]
    return tree


def _printed(value: Any) -> Any:
    """Return what a template writes.

    Raises:
        ValueError: it is no text, number or truth value.
    """
    if value is None:
        raise _no_text("None")
    if isinstance(value, (list, tuple)):
        raise _no_text("a list")
    if isinstance(value, Mapping):
        raise _no_text("an object")
    return value


def _no_text(what: str) -> ValueError:
    return ValueError(
        f"expected text where the chat template writes a value, got {what}: give the message a text as content, or "
        "pass a template= that writes its parts"
    )


def _checking_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    place = int(hasattr(function, "jinja_pass_arg"))

    @functools.wraps(function)
    def checking(*arguments: Any, **options: Any) -> Any:
        _printed(arguments[place])
        return function(*arguments, **options)

    return checking


def _checking_join(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checking(context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
        items = list(value)
        if attribute is None:
            items = [_printed(item) for item in items]
        return function(context, items, d, attribute)

    return checking


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> None:
    raise ValueError(message)
