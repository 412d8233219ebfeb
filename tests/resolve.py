"""Whether the public index has what constraints.txt names: `make resolve`.

pip works out, with dependencies, what it would install for every Python that is supported, and installs nothing: what `make demo` needs and
what `make test` needs. It asks the public index alone, whatever this machine's own settings say. Wheels are not downloaded where the index
lets their metadata be read alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [label.split(" :: ")[-1] for label in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", label)]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED_PIP = "pip>=25"  # which reads metadata alone


def requirements(*extras: str) -> list[str]:
    """What the core asks for, and these extras of it."""
    found: list[str] = list(PROJECT["dependencies"])
    for extra in extras:
        for line in EXTRAS[extra]:
            inner = re.fullmatch(rf"{PROJECT['name']}\[(.*)\]", line)
            found += requirements(*inner[1].split(","))[len(PROJECT["dependencies"]) :] if inner else [line]
    return found


def public() -> dict[str, str]:
    """An environment in which pip knows of the public index alone."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL")}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def resolved(pip: Path, version: str, wanted: list[str], constraints: Path, folder: Path) -> dict[str, str] | str:
    """Each package with its version; or what pip said when it found no answer."""
    report = folder / "report.json"
    there = shutil.which(f"python{version}") if version != ".".join(map(str, sys.version_info[:2])) else sys.executable
    whose = ["--python", there] if there and _runs(there) else []
    command = [str(pip), "-m", "pip", *whose, "install", "--dry-run", "--ignore-installed", "--quiet", "--use-feature=fast-deps"]
    if not whose:  # of a Python that is not here, wheels can be chosen all the same
        command += ["--python-version", version, "--only-binary=:all:"]
    command += ["--report", str(report), "--constraint", str(constraints), *wanted]
    done = subprocess.run(command, env=public(), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        return "\n".join(line for line in done.stderr.splitlines() if not line.startswith("WARNING"))
    return {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(report.read_text())["install"]}


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", "import venv"], capture_output=True, check=False).returncode == 0


def main(constraints: Path = CONSTRAINTS) -> int:
    failed = False
    with TemporaryDirectory() as folder:
        venv.create(Path(folder) / "pip", with_pip=True)
        pip = Path(folder) / "pip" / "bin" / "python"
        subprocess.run([pip, "-m", "pip", "install", "--quiet", "--upgrade", NEEDED_PIP], env=public(), check=True)
        for version in PYTHONS:
            for name, extras in (("make demo", ()), ("make test", ("dev",))):
                found = resolved(pip, version, requirements(*extras), constraints, Path(folder))
                failed |= isinstance(found, str)
                print(f"Python {version}, {name}: {found if isinstance(found, str) else f'{len(found)} packages'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
