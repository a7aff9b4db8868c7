"""Makes a virtual environment with the wheel of feedline and, read-only, the other packages of the running one.

usage: wheel_venv.py FOLDER DIST. The editable install of the running environment stays out of reach: its hook is a
``.pth`` file, which Python reads only in an environment's own site-packages, not in folders added by another.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

folder, dist = Path(sys.argv[1]), Path(sys.argv[2])
venv.create(folder / "venv", with_pip=True, clear=True)
python = folder / "venv" / "bin" / "python"
# The wheel for this Python.
pip = [python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
subprocess.run([*pip, "--find-links", dist, "feedline"], check=True)
site = subprocess.run(
    [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
    check=True,
    text=True,
    capture_output=True,
).stdout.strip()
Path(site, "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
where = subprocess.run(
    [python, "-c", "import feedline; print(feedline.__file__)"], check=True, text=True, capture_output=True
).stdout.strip()
if not where.startswith(site):
    sys.exit(f"expected feedline from {site}, got {where}")
print(f"testing {where}")
