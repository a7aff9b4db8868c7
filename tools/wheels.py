"""Make the wheels for Linux from the source distribution.

usage: wheels.py DIST PYTHON ...

Each PYTHON is a program: 3.11 makes wheels for itself, any later one makes wheels for 3.12 and all after it (abi3).
They need glibc 2.28 or later, and no C++ library: Zig (PyPI: ziglang) compiles for any processor, glibc and Linux, and
its libc++ is inside. So is libjpeg-turbo, the library of this machine's Debian for the processor of the wheel.
auditwheel adds it, and refuses a wheel that needs more than its tag says.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import ziglang

GLIBC = (2, 28)
#: Processors, as Linux and as Debian call them.
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
WORK = Path("build/wheels").resolve()
#: What a Python says of itself: version, suffix of modules, folders of headers and of their parts for one processor.
ABOUT = """
import sys, sysconfig
variable = sysconfig.get_config_var
print(sys.version_info.minor, variable("EXT_SUFFIX"), variable("INCLUDEPY"), variable("MULTIARCH"), sep="\\n")
"""
#: auditwheel offers the tags of the machine that it runs on only. It reads the processor of a wheel from its name.
AUDITWHEEL = """
import platform, sys
processor = sys.argv.pop(1)
platform.machine = lambda: processor
from auditwheel.main import main
sys.exit(main())
"""


def packages(processor: str, names: list[str], folder: Path) -> None:
    """Unpack packages of this machine's Debian, for any processor. Nothing is installed."""
    state = WORK / f"apt-{processor}"
    for part in ("lists/partial", "cache/archives/partial"):
        (state / part).mkdir(parents=True, exist_ok=True)
    options = [f"APT::Architecture={PROCESSORS[processor]}", f"APT::Architectures={PROCESSORS[processor]}"]
    options += [f"Dir::State::lists={state / 'lists'}", f"Dir::Cache={state / 'cache'}", "APT::Sandbox::User=root"]
    apt = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
    if shutil.which("apt-get") is None:
        sys.exit(f"expected apt-get, for {', '.join(names)} of {processor}, got none: run this on Debian or Ubuntu")
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *names], check=True, cwd=state)
    for package in state.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        package.unlink()


def jpeg_root(processor: str) -> Path:
    """Return a folder with `include` and `lib` of libjpeg-turbo."""
    root = WORK / f"root-{processor}"
    if not (root / "lib").exists():
        unpacked = WORK / f"jpeg-{processor}"
        packages(processor, ["libjpeg62-turbo", "libjpeg62-turbo-dev"], unpacked)
        (root / "include").mkdir(parents=True, exist_ok=True)
        for header in (unpacked / "usr" / "include").rglob("*.h"):
            shutil.copy(header, root / "include")
        library = unpacked / "usr" / "lib" / f"{processor}-linux-gnu"
        shutil.copytree(library, root / "lib", symlinks=True, ignore=shutil.ignore_patterns("*.a", "pkgconfig"))
    return root


def environment(python: str, minor: str) -> Path:
    """Return a Python with what compiles the module. It stays, so that a second run compiles what has changed."""
    folder = WORK / f"python-{minor}"
    executable = folder / "bin" / "python"
    if not executable.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, "scikit-build-core>=0.10", "nanobind>=2.2"], check=True)
    return executable


def make(source: Path, python: str, processor: str, dist: Path) -> None:
    """Compile one wheel, and put it into `dist`."""
    began = time.monotonic()
    root = jpeg_root(processor)
    about = subprocess.run([python, "-c", ABOUT], check=True, capture_output=True, text=True).stdout
    minor, suffix, headers, multiarch = about.splitlines()
    # Debian's Python has one header for each processor. All that are compiled for are alike.
    parts = Path(headers).parent / multiarch / Path(headers).name
    if parts.exists():
        shutil.copytree(parts, root / "include" / f"{processor}-linux-gnu" / parts.name, dirs_exist_ok=True)
    target = f"{processor}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    settings = {
        "build-dir": str(WORK / f"cmake-{processor}-{minor}"),
        "cmake.args": "-GNinja",
        "cmake.define.CMAKE_TOOLCHAIN_FILE": str(source / "native" / "zig.cmake"),
        "cmake.define.FEEDLINE_TARGET": target,
        "cmake.define.FEEDLINE_ROOT": str(root),
        "cmake.define.FEEDLINE_ZIG": f"{ziglang.__path__[0]}/zig",
    }
    if int(minor) >= 12:
        settings["wheel.py-api"] = "cp312"
    variables = os.environ | {
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
        "SETUPTOOLS_EXT_SUFFIX": suffix.replace(multiarch, f"{processor}-linux-gnu"),
        "LD_LIBRARY_PATH": str(root / "lib"),
    }
    made = WORK / "made"
    shutil.rmtree(made, ignore_errors=True)
    pip = [environment(python, minor), "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
    pip += ["--no-build-isolation"]
    pip += [word for name, value in settings.items() for word in ("-C", f"{name}={value}")]
    subprocess.run([*pip, "-w", made, source], check=True, env=variables)
    (wheel,) = made.glob("*.whl")
    tag = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{processor}"
    repair = [sys.executable, "-c", AUDITWHEEL, processor, "repair", "--plat", tag, "--only-plat", "-w", dist, wheel]
    subprocess.run(repair, check=True, env=variables)
    print(f"{wheel.name}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    """Make a wheel for each Python and processor."""
    dist, pythons = Path(sys.argv[1]).resolve(), sys.argv[2:]
    (archive,) = dist.glob("*.tar.gz")
    shutil.rmtree(WORK / "source", ignore_errors=True)
    with tarfile.open(archive) as sources:
        sources.extractall(WORK / "source", filter="data")
    (source,) = (WORK / "source").iterdir()
    for processor in PROCESSORS:
        for python in pythons:
            make(source, python, processor, dist)


if __name__ == "__main__":
    main()
