"""The part of torchtitan that its loaders are written against, for tests where torchtitan is not installed.

It has what the trainer relies on: a base class with a configuration, whose `build` makes the loader, and a tokenizer
that adds the tokens of beginning and end.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import ModuleType


class BaseDataLoader(ABC):
    """The class that loaders derive from."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config:
        dataset: str = ""
        dataset_path: str | None = None
        owner = None

        def build(self, **runtime):
            return type(self).owner(config=self, **runtime)

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        assert dataclasses.is_dataclass(cls.Config)
        cls.Config.owner = cls

    @abstractmethod
    def __iter__(self): ...

    @abstractmethod
    def state_dict(self): ...

    @abstractmethod
    def load_state_dict(self, state_dict): ...


class TitanTokenizer:
    """A tokenizer of a folder."""

    def __init__(self, folder):
        import tokenizers

        self.tokenizer_path = str(folder)
        self.tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.hf_adds_bos = self.hf_adds_eos = False
        self.bos_id, self.eos_id = self.tokenizer.token_to_id("<s>"), self.tokenizer.token_to_id("</s>")

    def encode(self, text, add_bos, add_eos):
        ids = self.tokenizer.encode(text).ids
        return [*([self.bos_id] if add_bos else []), *ids, *([self.eos_id] if add_eos else [])]


def stand_in(monkeypatch):
    """Make `import torchtitan.components.dataloader` work, with torchtitan itself if it is installed."""
    if importlib.util.find_spec("torchtitan") is not None:
        return
    for name in ("torchtitan", "torchtitan.components", "torchtitan.components.dataloader"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["torchtitan.components.dataloader"].BaseDataLoader = BaseDataLoader
    monkeypatch.delitem(sys.modules, "feedline.frameworks.torchtitan", raising=False)
