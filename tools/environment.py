"""Make a virtual environment with the packages of a task, and show the progress.

usage: environment.py FOLDER [--over BASE] [--core] [NAME ...]

Names are dependency groups or extras of pyproject.toml, at the versions of constraints.txt. With `--over`, the packages
of another environment are seen from the new one, so that they are not installed twice. With `--core`, feedline itself
is compiled and installed, editable. FEEDLINE_PORTABLE=1 makes that the portable core, in a build folder of its own, and
needs an environment of its own. Programs that are missing on the machine are listed first, with the command that
installs them.
"""

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIN_CMAKE = (3, 15)
#: Seconds between two lines of progress where nobody looks at a terminal.
SILENCE_S = 10.0


def requirements(names: list[str]) -> list[str]:
    """Return the requirements of extras and groups. A name of both is the group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    needed = dict.fromkeys(project["project"]["dependencies"])

    def follow(requirement: str) -> None:
        if inner := re.fullmatch(r"feedline\[(.*)\]", requirement):
            for extra in inner[1].split(","):
                for entry in extras[extra]:
                    follow(entry)
        else:
            needed[requirement] = None

    for name in names:
        for entry in groups.get(name) or extras[name]:
            follow(entry)
    return list(needed)


def check_machine() -> None:
    """End with a message if the native core cannot be compiled here."""
    missing = []
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        missing.append("g++")
    cmake = shutil.which("cmake")
    if cmake is None:
        missing.append("cmake")
    else:
        text = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=True).stdout
        match = re.search(r"version (\d+)\.(\d+)", text)
        if match and (int(match[1]), int(match[2])) < MIN_CMAKE:
            sys.exit(f"expected CMake {MIN_CMAKE[0]}.{MIN_CMAKE[1]} or later, got {match[1]}.{match[2]} ({cmake})")
    if missing:
        apt = shutil.which("apt-get")
        packages = " ".join(missing) if apt else " ".join(missing).replace("g++", "gcc-c++")
        command = f"apt-get install {packages}" if apt else f"dnf install {packages}"
        sys.exit(f"expected {' and '.join(missing)} to compile the native core, found none; run: {command}")


class Progress:
    """One line about the current step, rewritten on a terminal and repeated now and then elsewhere."""

    def __init__(self, title: str) -> None:
        self._title, self._began = title, time.monotonic()
        self._terminal, self._shown = sys.stdout.isatty(), self._began
        print(title, end="" if self._terminal else "\n", flush=True)

    def show(self, text: str) -> None:
        """Show the current step."""
        now = time.monotonic()
        if not self._terminal and now - self._shown < SILENCE_S:
            return
        self._shown = now
        line = f"{self._title}: {now - self._began:.0f} s, {text}"
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]:<{width}}" if self._terminal else line, end="" if self._terminal else "\n", flush=True)

    def end(self) -> None:
        """Tell how long it took."""
        line = f"{self._title}: {time.monotonic() - self._began:.0f} s"
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line:<{width}}" if self._terminal else line, flush=True)


def run(title: str, command: list[str], patterns: list[str]) -> None:
    """Run a command and show the last line of its output that matches a pattern. On failure, show all of its output."""
    progress, lines = Progress(title), []
    arrived: queue.Queue[str | None] = queue.Queue()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            arrived.put(line)
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    text = "begun"
    while True:
        try:
            line = arrived.get(timeout=1)
        except queue.Empty:
            line = ""
        if line is None:
            break
        lines.append(line)
        for pattern in patterns:
            if match := re.search(pattern, line):
                text = match[0].strip()
        progress.show(text)
    if process.wait():
        print(f"\n{''.join(lines)}", flush=True)
        sys.exit(f"failed: {' '.join(command)}")
    progress.end()


def main() -> None:
    """Make the environment that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--over", type=Path)
    parser.add_argument("--core", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_intermixed_args()
    check_machine()
    python = options.folder / "bin" / "python"
    if not python.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", options.folder], check=True)
        except subprocess.CalledProcessError:
            shutil.rmtree(options.folder, ignore_errors=True)
            sys.exit("expected Python's venv; on Debian, run: apt-get install python3-venv")
    (site,) = options.folder.glob("lib/python*/site-packages")
    if options.over is not None:
        (base,) = options.over.resolve().glob("lib/python*/site-packages")
        (site / "over.pth").write_text(f"import site; site.addsitedir({str(base)!r})\n")
    # Modules are compiled when they are imported for the first time: most never are.
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-c", "constraints.txt", "--no-compile"]
    if options.names:
        run(
            f"installing packages for {', '.join(options.names)} into {options.folder}",
            [*pip, *requirements(options.names)],
            [r"^Collecting \S+", r"^\s*Downloading \S+ \(.*\)", r"^Installing collected packages"],
        )
    if options.core:
        settings = []
        if os.environ.get("FEEDLINE_PORTABLE") == "1":
            if not options.folder.name.endswith("-portable"):
                sys.exit(f"expected an environment for the portable core, such as .venv-portable, got {options.folder}")
            settings = ["-C", "cmake.define.FEEDLINE_PORTABLE=ON", "-C", "build-dir=build/portable-{wheel_tag}"]
        run(
            "compiling the native core",
            [*pip, "-v", "--no-build-isolation", "--no-deps", *settings, "-e", "."],
            [r"\[\d+/\d+\] .*", r"-- Configuring done"],
        )


if __name__ == "__main__":
    main()
