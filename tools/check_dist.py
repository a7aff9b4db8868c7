"""Check the distributions of `make wheel` before anybody installs them.

usage: check_dist.py DIST. The wheel runs on any Linux of its tag, with libjpeg-turbo inside and the licenses of its
parts. The source distribution has the sources and the tests, and nothing that was built.
"""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

dist = Path(sys.argv[1])
(wheel,) = dist.glob("*.whl")
(source,) = dist.glob("*.tar.gz")
wrong = []

names = zipfile.ZipFile(wheel).namelist()
if not re.search(r"-manylinux_\d+_\d+_\w+$", wheel.stem):
    wrong.append(f"expected a manylinux wheel, got {wheel.name}")
for pattern, what in [
    (r"feedline/_native/_kernels\..*\.so", "the native module"),
    (r"feedline/py\.typed", "the mark of typed packages"),
    (r"feedline_demo/run\.py", "the demo"),
    (r"feedline\.libs/libjpeg.*", "libjpeg-turbo: is it installed here? (Debian: libjpeg-dev)"),
    (r"feedline-.*\.dist-info/licenses/LICENSE", "the license"),
    (r"feedline-.*\.dist-info/licenses/native/licenses/libjpeg-turbo\.txt", "the license of libjpeg-turbo"),
]:
    if not any(re.fullmatch(pattern, name) for name in names):
        wrong.append(f"{wheel.name} lacks {what}")

with tarfile.open(source) as archive:
    members = [name.partition("/")[2] for name in archive.getnames()]
needed = ("pyproject.toml", "CMakeLists.txt", "constraints.txt", "native/sources.cmake", "tests/conftest.py", "LICENSE")
wrong += [f"{source.name} lacks {name}" for name in needed if name not in members]
built = [name for name in members if re.match(r"(build|dist|\.venv|demo-out)/|.*\.so$|.*__pycache__", name)]
if built:
    wrong.append(f"{source.name} has what was built: {', '.join(built[:5])}")

if wrong:
    sys.exit("\n".join(wrong))
for path in (wheel, source):
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
