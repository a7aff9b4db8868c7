"""NumPy's files and CSV with any of their bytes changed."""

from __future__ import annotations

import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

WORDS = (
    *(b"'<f4'", b"'|O'", b"'<U5'", b"'<f8'", b"'<c16'", b"'<M8[s]'", b"True", b"()", b"(0,)", b"(-1,)", b"(1, 2**60)"),
    *(b"(9999999999999,)", b"(60, 0)", b"((((", b"fortran_order", b"descr", b"None", b"{", b"\n", b"\x93NUMPY\x03\x00"),
)
CSV = (b",", b'"', b'""', b"\n", b"\r", b"\0", b"nan", b"1e999", b"9" * 400, b"-", b"x", b",,,,", b"\xff", b'"\n"')


class HostileArrays(Hostile):
    """Reads or refuses."""

    name = "hostile-arrays"
    asks = "does any change of a .npy, .npz or .csv file crash, or take memory without bound?"

    def original(self, case: Case) -> Callable[[], Any]:
        shutil.copy(case.data / "few" / "data.csv", case.folder / "whole.csv")
        paths = [case.data / "few" / "arrays" / "x.npy", case.data / "few" / "data.npz", case.folder / "whole.csv"]
        return lambda: [_read(path, "raise") for path in paths]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        kind = rng.choice(["npy", "npz", "csv", "bomb"])
        few, twin = case.data / "few", case.data / "twin"
        path = case.folder / f"{k}.{'npz' if kind == 'bomb' else kind}"
        if kind == "bomb":
            how = self._bomb(rng, path)
        else:
            name = {"npy": "arrays/x.npy", "npz": "data.npz", "csv": "data.csv"}[kind]
            text, how = mutated(
                rng, (few / name).read_bytes(), (twin / name).read_bytes(), CSV if kind == "csv" else WORDS
            )
            path.write_bytes(text)

        on_error = rng.choice(["raise", "skip"])
        return f"{kind}: {how}", lambda: _read(path, on_error)

    def _bomb(self, rng: Any, path: Any) -> str:
        """A member of a few bytes that claims to be, or expands to, many."""
        count = rng.choice([1 << 20, 1 << 30, 1 << 40, 1 << 62])
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}".encode().ljust(117) + b"\n"
        member = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header + bytes(rng.choice([0, 64, 8 << 20]))
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("x.npy", member)
        return f"a member of {len(member)} bytes that claims {count} numbers"


def _read(path: Path, on_error: Any) -> None:
    if path.suffix == ".csv":
        fl.convert(path, path.with_suffix(".store"), on_error=on_error, overwrite=True)
        return
    for minibatch in fl.MinibatchSource(fl.open_corpus(path), max_sweeps=1).minibatches(100):
        dict(minibatch.items())
