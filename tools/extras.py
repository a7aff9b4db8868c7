"""Install each extra into its own environment and run the page that shows it.

usage: extras.py DIST [EXTRA ...]. Pages are those of the table of extras in docs/how-to/install.md. `tests.docs.pages`
runs them as in tests, but from the wheel in DIST, and with nothing installed that the extra, or one of `ALSO`, does not
bring. Versions are those of constraints.txt, or for an extra that contradicts it of constraints-EXTRA.txt. The tests of
an extra that `make test` skips run after its page, with other packages from the environment that runs this program.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Extras that a page needs in addition to its own: it trains, draws, or calls the command.
ALSO = {
    "audio": ["torch"],
    "images": ["torch", "cli"],
    "metrics": ["torch"],
    "onnx": ["cntk"],
    "ray": ["torch", "cli"],
    "tensorboard": ["torch", "cli"],
    "tokenizers": ["torch", "cli"],
    "viz": ["cntk"],
}
#: Extras whose tests `make test` skips, as no other environment has them: a file of tests, and cases of the laws.
TESTED = ("arrayrecord", "lance")
LAWS = [f"tests/laws/test_{name}.py" for name in ("byte_strings", "formats_killed", "growth", "loader_growth")]
#: Modules that every interpreter of an extra's environment imports first. PyPI's torchvision is built for CUDA. Over a
#: torch that is built for CPUs it can be imported only once its operators are declared.
FIRST = {"frameworks": "tests.frameworks.vision"}
#: Runs a page in a fresh interpreter for each program: pages of the tests are forked from a warm one.
_RUN = """
import subprocess, sys
from tests.docs import pages

def run(arguments, imported, **options):
    options["env"]["PYTHONPATH"] += ":" + sys.argv[2]
    return subprocess.run([sys.executable, *arguments], **options)

pages.run = run
page = pages.Path(sys.argv[1])
print(pages.Program(page.name).run(page.read_text("utf-8")), "blocks ran")
"""


def pages() -> dict[str, Path]:
    """Return the page of each extra, in the order of the table. `none` is the wheel alone."""
    install = ROOT / "docs" / "how-to" / "install.md"
    table = install.read_text("utf-8").split("## Extras\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `?(\w+)`? \| .+ \| \[.+\]\((.+)\) \|$", table, re.MULTILINE)
    return {extra: (install.parent / page).resolve() for extra, page in rows}


def constraints(extra: str) -> Path:
    """Return the versions to install: those of the extra if it contradicts the others, else those of all."""
    own = ROOT / f"constraints-{extra}.txt"
    return own if own.exists() else ROOT / "constraints.txt"


def check(extra: str, page: Path, dist: Path) -> bool:
    """Install and run one extra, return whether its page ran, and its tests passed."""
    began = time.monotonic()
    extras = ",".join([] if extra == "none" else [extra, *ALSO.get(extra, [])])
    with tempfile.TemporaryDirectory() as folder:
        venv.create(f"{folder}/venv", with_pip=True)
        python = f"{folder}/venv/bin/python"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", "-c", str(constraints(extra))]
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": f"{folder}/cache", "PYTHONDONTWRITEBYTECODE": "1"}
        environment["PATH"] = f"{folder}/venv/bin:{environment['PATH']}"
        Path(folder, "work").mkdir()
        # The wheel for this Python, then the packages that it needs.
        subprocess.run([*pip, "--no-index", "--no-deps", "--find-links", dist, "feedline"], check=True)
        subprocess.run([*pip, f"feedline[{extras}]"], check=True, stdout=subprocess.DEVNULL)
        (packages,) = Path(folder, "venv", "lib").glob("python*/site-packages")
        if extra in FIRST:
            (packages / "first.pth").write_text(f"import {FIRST[extra]}\n")
        installed = time.monotonic()
        output = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        run = [python, "-c", _RUN, str(page), str(ROOT)]
        done = subprocess.run(run, cwd=f"{folder}/work", env=environment, **output)
        if extra in TESTED and done.returncode == 0:
            (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
            run = [python, "-m", "pytest", "-q", f"tests/feed/formats/test_{extra}.py", *LAWS, "-k", extra]
            done = subprocess.run(run, cwd=ROOT, env=environment, **output)
    name = f"{page.relative_to(ROOT)}{' and tests' * (extra in TESTED)}"
    seconds = f"{installed - began:.0f} s to install, {time.monotonic() - installed:.0f} s to run"
    print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {extras or 'none'}: {name}, {seconds}", flush=True)
    if done.returncode:
        print(done.stdout[-3000:], flush=True)
    return done.returncode == 0


def main() -> None:
    """Check the extras that are named, or all."""
    dist = Path(sys.argv[1]).resolve()
    of = pages()
    failed = [extra for extra in sys.argv[2:] or of if not check(extra, of[extra], dist)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
