"""The toolchain of `make cross` and `make wheel`: a kernel's native test is compiled by Zig and run under qemu."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ZIG = next(ROOT.glob(".venv*-cross/lib/python3*/site-packages/ziglang/zig"), None)
pytestmark = [
    pytest.mark.skipif(ZIG is None, reason="ziglang is not installed, run `make cross`"),
    pytest.mark.skipif(shutil.which("qemu-aarch64-static") is None, reason="qemu-aarch64-static is not installed"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed"),
    pytest.mark.timeout(1800),  # Zig compiles its C++ library first, once
]
#: The part of CMakeLists.txt that makes a static library and a test, for one kernel that includes no other.
PROJECT = """
cmake_minimum_required(VERSION 3.16...3.31)
project(packing LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 17)
add_library(core STATIC {root}/native/src/packing.cpp)
target_include_directories(core PUBLIC {root}/native/include)
add_executable(test_packing {root}/native/tests/test_packing.cpp)
target_link_libraries(test_packing PRIVATE core)
enable_testing()
add_test(NAME test_packing COMMAND test_packing)
"""
AARCH64 = 183  # e_machine


def test_a_kernel_compiled_for_aarch64_passes_its_test(tmp_path: Path) -> None:
    build = tmp_path / "build"
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(root=ROOT))
    configure = ["cmake", "-S", str(tmp_path), "-B", str(build), "--toolchain", str(ROOT / "native" / "zig.cmake")]
    configure += [f"-DFEEDLINE_ZIG={ZIG}", "-DFEEDLINE_TARGET=aarch64-linux-musl", "-DCMAKE_BUILD_TYPE=Release"]
    for command in (configure, ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    program = (build / "test_packing").read_bytes()
    assert program[:4] == b"\x7fELF"
    assert int.from_bytes(program[18:20], "little") == AARCH64
    done = subprocess.run(["ctest", "--test-dir", str(build), "--output-on-failure"], capture_output=True, text=True)
    assert "100% tests passed, 0 tests failed out of 1" in done.stdout, done.stdout + done.stderr
