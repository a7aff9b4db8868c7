"""Check the distributions of `make wheel` before anybody installs them.

usage: check_dist.py DIST. Each wheel runs on any Linux of its tag: its module is for that processor, needs no newer
glibc, no C++ library, and exports nothing but its start. libjpeg-turbo and the licenses of all parts are inside. The
source distribution has the sources and the tests, and nothing that was built.
"""

import io
import re
import sys
import tarfile
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

PROCESSORS = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
#: Python, ABI and processor of the wheels that are released.
TAGS = {f"{tag}-manylinux_2_28_{processor}" for tag in ("cp311-cp311", "cp312-abi3") for processor in PROCESSORS}
GLIBC = (2, 28)
#: Libraries of the system that a module may load.
SYSTEM = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d|ld-linux-.*")

dist = Path(sys.argv[1])
wheels = sorted(dist.glob("*.whl"))
(source,) = dist.glob("*.tar.gz")
wrong = []

if {wheel.stem.split("-", 2)[2] for wheel in wheels} != TAGS:
    wrong.append(f"expected wheels of {', '.join(sorted(TAGS))}, got {', '.join(wheel.name for wheel in wheels)}")


def check_binary(name: str, content: bytes, processor: str) -> None:
    """Check one library or module of a wheel."""
    elf = ELFFile(io.BytesIO(content))
    machine = elf["e_machine"]
    if machine != PROCESSORS[processor]:
        wrong.append(f"{name}: expected machine code of {PROCESSORS[processor]}, got {machine}")
    needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    if beyond := [library for library in needed if not SYSTEM.fullmatch(library) and "libjpeg" not in library]:
        wrong.append(f"{name}: expected libraries of the system, got {', '.join(beyond)}")
    for library, versions in elf.get_section_by_name(".gnu.version_r").iter_versions():
        for version in versions if SYSTEM.fullmatch(library.name) else ():
            numbers = re.fullmatch(r"GLIBC_([\d.]+)", version.name)
            if not numbers or tuple(map(int, numbers[1].split("."))) > GLIBC:
                wrong.append(f"{name}: expected GLIBC_{GLIBC[0]}.{GLIBC[1]} or earlier, got {version.name}")
    if "_kernels" in name:
        symbols = elf.get_section_by_name(".dynsym").iter_symbols()
        exported = [symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF" and symbol.name]
        if exported != ["PyInit__kernels"]:
            wrong.append(f"{name}: expected no symbol but PyInit__kernels, got {', '.join(exported[:5])}")


for wheel in wheels:
    python, abi, platform = wheel.stem.split("-")[2:]
    processor = platform.removeprefix("manylinux_2_28_")
    suffix = r"abi3" if abi == "abi3" else rf"cpython-{python.removeprefix('cp')}-{processor}-linux-gnu"
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    for pattern, what in [
        (rf"feedline/_native/_kernels\.{suffix}\.so", "the native module"),
        (r"feedline/py\.typed", "the mark of typed packages"),
        (r"feedline_demo/run\.py", "the demo"),
        (r"feedline\.libs/libjpeg.*", "libjpeg-turbo"),
        (r"feedline-.*\.dist-info/licenses/LICENSE", "the license"),
        (r"feedline-.*\.dist-info/licenses/native/licenses/libjpeg-turbo\.txt", "the license of libjpeg-turbo"),
    ]:
        if not any(re.fullmatch(pattern, name) for name in names):
            wrong.append(f"{wheel.name} lacks {what}")
    for name in names:
        if re.search(r"\.so(\.|$)", name) and processor in PROCESSORS:
            check_binary(f"{wheel.name}: {name}", archive.read(name), processor)

with tarfile.open(source) as archive:
    members = [name.partition("/")[2] for name in archive.getnames()]
needed = ("pyproject.toml", "CMakeLists.txt", "constraints.txt", "native/sources.cmake", "tests/conftest.py", "LICENSE")
wrong += [f"{source.name} lacks {name}" for name in needed if name not in members]
built = [name for name in members if re.match(r"(build|dist|\.venv|demo-out)/|.*\.so$|.*__pycache__", name)]
if built:
    wrong.append(f"{source.name} has what was built: {', '.join(built[:5])}")

if wrong:
    sys.exit("\n".join(wrong))
for path in (*wheels, source):
    print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
