"""Invalid CTF texts, under all options of the reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import feedline as fl
from tests.torture import data
from tests.torture.case import Case, WrongError
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

WORDS = (
    *(b"|x ", b"|word ", b"|y ", b"|# ", b"|", b"||", b"\n", b"\r\n", b"\t", b" ", b":", b"::", b"#|", b"\0", b"\xff"),
    *(b"1e999", b"-1e-999", b"1e", b".5", b"nan", b"inf", b"-", b"+1", b"0x1p3", b"1" * 400, b"0." + b"0" * 400 + b"1"),
    *(b"4294967296:1", b"-1:1", b"49:1", b"50:1", b"2147483648:1", b"18446744073709551616 |x 1", b"3:", b":1", b"|x"),
    *(b"3:1:1", b"18446744073709551615 ", b"0 ", b"\xef\xbb\xbf", b"|x 1 2 3 4", b"|x 1", b"|y 1:1 2:1", b"\n\n"),
)


class HostileCTF(Hostile):
    """Reads one-hot samples in range and dense ones in shape, or refuses."""

    name = "hostile-ctf"
    asks = "does any text make the CTF reader crash, or hand out what is out of range?"

    def original(self, case: Case) -> Callable[[], Any]:
        corpus = lambda: data.open_ctf(case.data / "few", cache=False)  # noqa: E731
        return lambda: data.in_order(fl.MinibatchSource(corpus(), max_sweeps=1))

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        names = ("data.ctf", "features.ctf", "labels.ctf")
        text = (case.data / "few" / rng.choice(names)).read_bytes()
        other = (case.data / "twin" / rng.choice(names)).read_bytes()
        if rng.random() < 0.3:
            text = b"\n".join(text.split(b"\n")[: rng.randint(0, 6)])
        text, how = mutated(rng, text, other, WORDS)
        path = case.folder / f"{k}.ctf"
        path.write_bytes(text)
        options = {
            "skip_sequence_ids": rng.random() < 0.2,
            "lenient": rng.random() < 0.4,
            "max_errors": rng.choice([0, 0, 3, 1000]),
            "chunk_size": rng.choice([1, 100, 2000, 1 << 20]),
            "cache": rng.choice([True, False]),
            "memory": rng.choice([1, 1000, 1 << 20, 64 << 20]),
        }
        streams = {name: data.STREAMS[name] for name in rng.sample(sorted(data.STREAMS), rng.randint(1, 3))}
        if rng.random() < 0.1:
            streams["x"] = fl.Stream(rng.choice([1, 1 << 16, (2**31) - 1]), sparse=rng.random() < 0.5)
        on_error = rng.choice(["raise", fl.Quarantine(case.folder / f"{k}.jsonl")])
        source = {"on_error": on_error, "shuffle": rng.random() < 0.5, "max_sweeps": 1}

        def parse() -> None:
            corpus = fl.CTFDeserializer(path, streams, **options)
            for minibatch in fl.MinibatchSource(corpus, **source).minibatches(100):
                for name, stream in streams.items():
                    value = minibatch[name]
                    if stream.sparse and len(value.indices):
                        low, high = int(np.min(value.indices)), int(np.max(value.indices))
                        if low < 0 or high >= stream.size:
                            raise WrongError(f"indices of `{name}` from {low} to {high}")

        return f"{how}; {options}, {source}, {sorted(streams)}", parse
