"""Prints the CPU seconds that each file of the native core takes to compile, and their sum.

    cmake -S . -B build/dev -G Ninja && python tools/compile_seconds.py build/dev [part of a file's name ...]

Runs every command of build/dev/compile_commands.json, one after the other. A busy machine inflates CPU seconds, too, so
the sum is given in nanobind's own file as well, which is compiled in the same run.
"""

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path

build, names = Path(sys.argv[1]), sys.argv[2:]
commands = json.loads((build / "compile_commands.json").read_text())
commands.sort(key=lambda command: "cmake_pch" not in command["file"])  # the others include these
seconds = {}
for command in commands:
    if names and not any(name in command["file"] for name in [*names, "cmake_pch"]):
        continue
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(shlex.split(command["command"]), cwd=command["directory"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds[command["file"]] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

for file, spent in sorted(seconds.items(), key=lambda item: -item[1]):
    print(f"{spent:6.1f}  {'/'.join(Path(file).parts[-3:])}")
total = sum(seconds.values())
nanobind = [spent for file, spent in seconds.items() if file.endswith("nb_combined.cpp")]
print(f"{total:6.1f}  all" + (f", {total / nanobind[0]:.1f} times nanobind's own file" if nanobind else ""))
