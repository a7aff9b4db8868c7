"""One word, one meaning."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.docs.pages import ROOT


def words(text):
    """Return the words that the glossary defines, in its order."""
    return re.findall(r"^- \*\*([^*]+)\*\*:", text, re.MULTILINE)


def test_the_glossary_defines_each_word_once():
    defined = words((ROOT / "docs" / "glossary.md").read_text("utf-8"))
    assert len(defined) > 30
    assert [word for word, times in Counter(word.lower() for word in defined).items() if times > 1] == []


def test_a_second_meaning_is_noticed():
    assert Counter(words("- **graph**: one\n- **node**: a\n- **graph**: two\n"))["graph"] == 2


# ---- parameters ---------------------------------------------------------------------------------------------

#: Kinds of values that mean the same to a caller, by a pattern in the annotation.
KINDS = {
    "path": r"PathLike|\bPaths?\b",
    "flag": r"^bool$",
    "number": r"^(int|float)$",
    "array": r"NDArray|ArrayLike|\bInts\b|Tensor\b|Sequence\[int\]",
}

#: Parameters of public constructors and functions that take several kinds of values, and the meaning of all of them.
SEVERAL = {
    "append": "what comes behind: whether a conversion does, or a token",
    "boundaries": "where lengths, or phones of a label file, are divided",
    "cache": "where, or whether, to keep what was computed or fetched",
    "chunks": "chunks: their numbers, or how many",
    "columns": "columns of a table, by name",
    "corpus": "the sequences to read",
    "defines_size": "the stream whose samples are counted: of a stream whether, of a corpus which",
    "dtype": "a dtype or its name",
    "every": "how often",
    "fill": "values of new elements",
    "function": "the function that is wrapped",
    "inputs": "the nodes or arrays that a network takes",
    "keep": "what is kept: streams, or a number of checkpoints",
    "keys": "keys of sequences: numbers, or also texts",
    "lengths": "samples of sequences: the numbers, or a range of them",
    "pad": "whether there is padding, or of which kind",
    "mask": "which samples are present or count: the mask, or whether a stream has one",
    "max_sweeps": "sweeps until the end, of one corpus or of each",
    "minibatches": "minibatches to look at: themselves, or how many",
    "on_error": "what happens to unreadable sequences",
    "path": "where files are",
    "progress": "how progress is shown: by whom, or how often",
    "ranks": "the ranks of a job: some of them, or which of them this is",
    "roots": "nodes from which a network is followed",
    "scale": "a factor, or the range of one",
    "schema": "streams: themselves, or how files that differ in them are read",
    "sequences": "sequences: how many, or the streams that have several samples in each",
    "shape": "the shape of a sample, as numbers or as one",
    "shuffle": "how sequences are shuffled: whether, how far, or by which seed",
    "size": "the size of minibatches, or of pictures",
    "source": "where samples come from",
    "streams": "streams by name, as far as a format needs their declaration",
    "unit": "what a number counts",
    "values": "values by stream, or of a schedule",
    "version": "a version of a table or a file: its number, or also its tag",
    "weights": "relative weights: numbers, or by name",
    "what": "what was wrong, or what is opened",
    "workers": "the processes that work: their kind, or their number",
}


def kind_of(annotation):
    """Return the kind of values of an annotation, which is the annotation itself if no pattern fits."""
    text = str(annotation)
    forward = re.fullmatch(r"ForwardRef\('(.*)'\)", text)
    text = forward[1] if forward else text
    text = " | ".join(sorted(part for part in text.split(" | ") if part != "None"))
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, text)), text)


def parameters_of(function):
    """Return the parameters of a function or constructor, or none of an exception that has the one of BaseException."""
    try:
        return inspect.signature(function).parameters.values()
    except ValueError:
        return ()


def kinds_of_parameters(functions):
    """Return the kinds of values of each parameter, by its name."""
    kinds = defaultdict(set)
    for function in functions:
        for parameter in parameters_of(function):
            plain = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if plain and parameter.annotation not in ("Any", parameter.empty):
                kinds[parameter.name].add(kind_of(parameter.annotation))
    return kinds


def public_callables():
    """Return the public functions and classes."""
    names = ["", ".train", ".audio", ".images", ".kvstore", ".testing", ".networks"]
    modules = [importlib.import_module(f"feedline{name}") for name in names]
    named = [getattr(module, name) for module in modules for name in getattr(module, "__all__", dir(module))]
    own = [entry for entry in named if getattr(entry, "__module__", "").startswith("feedline.")]
    return [entry for entry in own if inspect.isfunction(entry) or (inspect.isclass(entry) and not _is_enum(entry))]


def _is_enum(entry):
    return issubclass(entry, enum.Enum)


def test_a_public_parameter_has_one_meaning():
    kinds = kinds_of_parameters(public_callables())
    assert len(kinds) > 150
    several = {name for name, found in kinds.items() if len(found) > 1}
    assert several - SEVERAL.keys() == set(), "another name, or the meaning of all its kinds in SEVERAL"
    assert SEVERAL.keys() - several == set(), "these take one kind of value now: take them off the list"


def test_a_second_kind_of_value_is_noticed():
    def first(row: int, names: Sequence[str]) -> None: ...
    def second(row: str, names: Sequence[str] | None) -> None: ...

    assert kinds_of_parameters([first, second]) == {"row": {"number", "str"}, "names": {"Sequence[str]"}}
