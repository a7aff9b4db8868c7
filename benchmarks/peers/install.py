"""``python -m benchmarks.peers.install FOLDER [PEER ...]``: an environment with feedline and every peer that installs.

Needs nothing but Python. Peers are installed one by one. Where one does not install, pip's message is kept and shown
in the table. A peer whose requirements contradict those of others comes without them, and with the modules it imports.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONSTRAINTS = ROOT / "constraints-peers.txt"
#: Requirements for pip, in turn. The first group is feedline's own, without which there is nothing to measure.
GROUPS: dict[str, list[list[str]]] = {
    "feedline": [
        ["numpy", "pyarrow", "torch", "safetensors", "obstore", "fsspec", "pillow", "simplejpeg", "soundfile", "soxr"],
        ["scikit-build-core", "nanobind", "ninja"],
        ["--no-build-isolation", "--no-deps", "--force-reinstall", str(ROOT)],
    ],
    "torchdata": [["torchdata"]],
    "tf.data": [["tensorflow-cpu"]],
    "Grain": [["grain", "array_record"]],
    "WebDataset": [["webdataset"]],
    "SPDL": [["spdl", "spdl-io"]],
    "Ray Data": [["ray[data]"]],
    "HF datasets": [["datasets", "aiohttp", "requests"]],
    # Its pins (numpy < 2.2, transformers < 5, xxhash < 4) contradict the others. Clients of clouds are not imported.
    "MosaicML Streaming": [
        ["--no-deps", "mosaicml-streaming"],
        ["boto3", "brotli", "catalogue", "python-snappy", "torchvision", "tqdm", "transformers", "xxhash", "zstd"],
    ],
    "LitData": [["litdata", "polars"]],
    "s3torchconnector": [["s3torchconnector"]],
    "Lhotse": [["lhotse"]],
}
#: The distributions whose versions the table gives.
SHOWN = (
    "feedline",
    "torch",
    "torchdata",
    "grain",
    "array-record",
    "mosaicml-streaming",
    "litdata",
    "webdataset",
    "datasets",
    "lhotse",
    "spdl",
    "tensorflow-cpu",
    "ray",
    "numpy",
    "pyarrow",
    "simplejpeg",
    "pillow",
    "soundfile",
    "soxr",
    "obstore",
    "s3torchconnector",
)
REFUSED = "refused.json"


def main(folder: Path, peers: list[str]) -> int:
    """Install those peers, or all. The exit code is 1 if feedline itself does not install."""
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    path = folder / REFUSED
    refused = json.loads(path.read_text()) if path.exists() else {}
    for peer in peers or GROUPS:
        print(f"installing {peer} ...", flush=True)
        refused.pop(peer, None)
        for step in GROUPS[peer]:
            why = pip(folder, step)
            if why and peer == "feedline":
                print(why, file=sys.stderr)
                return 1
            if why:
                refused[peer] = why
                print(f"  it does not install: {why}", flush=True)
                break
    path.write_text(json.dumps(refused) + "\n")
    return 0


def pip(folder: Path, step: list[str]) -> str:
    """Run pip, return its message if it fails."""
    command = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    environment = os.environ | {"SKBUILD_BUILD_DIR": str(folder.parent / "peers-native")}
    ran = subprocess.run(
        [*command, "-c", str(CONSTRAINTS), *step], capture_output=True, text=True, check=False, env=environment
    )
    if ran.returncode == 0:
        return ""
    errors = [line for line in (ran.stderr + ran.stdout).splitlines() if line.startswith("ERROR:")]
    return (errors or [f"pip ended with {ran.returncode}"])[-1].removeprefix("ERROR: ")[:300]


def refused() -> dict[str, str]:
    """By peer: why it did not install in this environment."""
    path = Path(sys.prefix) / REFUSED
    found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return found


def found(module: str) -> bool:
    """Whether a module can be imported."""
    return importlib.util.find_spec(module) is not None


def versions() -> dict[str, str]:
    """Return the installed versions of the packages in the table."""
    said = {}
    for name in SHOWN:
        try:
            said[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return said


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
