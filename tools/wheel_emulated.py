"""Run pages of the documentation from the wheel for aarch64, under qemu's user emulation.

usage: wheel_emulated.py DIST. Python is Debian 12's for arm64, NumPy and pyarrow are PyPI's wheels for it. All are
unpacked below build/wheels and not installed. torch is not there, so a page runs up to its first section with torch.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from wheels import WORK, packages

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("docs/tutorial/first-feed.md", "docs/how-to/parts.md", "docs/formats/store.md")
#: What Debian's Python and its modules load.
DEBIAN = "python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 zlib1g libexpat1"
DEBIAN += " libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1"
TAGS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
_RUN = """
import platform, sys
from tests.docs import pages

page = pages.Path(sys.argv[1])
sections = page.read_text("utf-8").split("\\n## ")
last = next((place for place, section in enumerate(sections) if "torch" in section and place), len(sections))
ran = pages.Program(page.name).run("\\n## ".join(sections[:last]))
assert ran, f"expected blocks to run in {page}, got none"
print(ran, "blocks ran on", platform.machine())
"""


def emulated_python(dist: Path) -> tuple[list[str], Path]:
    """Return the command that starts Python, and the folder of its packages: feedline's wheel and what it needs."""
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        sys.exit("expected qemu-aarch64-static, got none; on Debian, run: apt-get install qemu-user-static")
    root, installed = WORK / "emulated-aarch64", WORK / "emulated-packages"
    if not (root / "usr" / "bin" / "python3.11").exists():
        packages("aarch64", DEBIAN.split(), root)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--upgrade", "--no-compile"]
    pip += ["--only-binary=:all:", "--python-version=3.11", "--target", str(installed), "-c"]
    pip += [str(ROOT / "constraints.txt"), *(f"--platform={tag}" for tag in TAGS)]
    (wheel,) = dist.glob("feedline-*-cp311-cp311-*_aarch64.whl")
    shutil.rmtree(installed, ignore_errors=True)
    subprocess.run([*pip, str(wheel)], check=True)
    return [qemu, "-L", str(root), str(root / "usr" / "bin" / "python3.11")], installed


def main() -> None:
    """Run each page in an empty folder."""
    python, installed = emulated_python(Path(sys.argv[1]).resolve())
    for page in PAGES:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {"PYTHONPATH": f"{installed}:{ROOT}", "XDG_CACHE_HOME": f"{folder}/cache"}
            subprocess.run([*python, "-c", _RUN, ROOT / page], cwd=folder, env=environment, check=True)
        print(f"{page}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
