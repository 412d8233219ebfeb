"""Every test on four set-ups, each a fresh copy of the code in a virtual environment of its own: `make matrix`, or `make matrix ONLY=3.12`.

They stand in for machines that are not here: another CPU, another user, other Pythons. Copies, environments, logs and results lie in
.matrix, or where MATRIX says. What has a result for this very code is not run again, unless it is asked for by name.
PYTHON3_12=/path/to/python3.12 names an interpreter that is not on the PATH.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
FOLDER = Path(os.environ.get("MATRIX", ROOT / ".matrix")).absolute()
OTHER_CPU = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Column:
    """One set-up."""

    name: str
    python: str
    folder: str  # of its copy
    what: str
    environment: dict[str, str] = field(default_factory=dict)
    stranger: bool = False  # run as another user, from whom nothing is taken for granted

    @property
    def copy(self) -> Path:
        return FOLDER / self.folder

    @property
    def result(self) -> Path:
        return FOLDER / f"{self.name}.json"


COLUMNS = [
    Column("3.11", "3.11", "3.11", "as it is"),
    Column(
        "3.11-other-cpu", "3.11", "3.11-other-cpu", "AVX2 alone, one thread, no FBGEMM", OTHER_CPU | {"PYTHONPATH": "tests/elsewhere"}
    ),
    Column(
        "3.12", "3.12", "3.12 schön", "nohup, another user, LC_ALL=C, TZ=Asia/Kolkata, umask 077, odd path, HOME that can't be written",
        {"LC_ALL": "C", "TZ": "Asia/Kolkata"}, stranger=True,
    ),
    Column("3.13", "3.13", "3.13", "OMP_NUM_THREADS=8", {"OMP_NUM_THREADS": "8"}),
]  # fmt: skip


def main(names: list[str]) -> int:
    known = [column.name for column in COLUMNS]
    if unknown := set(names) - set(known):
        raise SystemExit(f"no such column: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    code = fingerprint()
    for column in COLUMNS:
        if column.name in names or (not names and found(column).get("code") != code):
            print(f"{column.name}: {column.what} …", flush=True)
            column.result.write_text(json.dumps({"code": code} | run(column), indent=1))
    print(written := table(code))
    (FOLDER / "table.md").write_text(written, encoding="utf-8")
    return int(any(found(column).get("failed", 0) or found(column).get("trouble") for column in COLUMNS))


def files() -> list[str]:
    """Those of the code, with what is new and not ignored."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
    return sorted(name for name in listed.decode().split("\0") if name and (ROOT / name).is_file())


def fingerprint() -> str:
    whole = hashlib.sha256()
    for name in files():
        whole.update(name.encode() + b"\0" + hashlib.sha256((ROOT / name).read_bytes()).digest())
    return whole.hexdigest()[:12]


def found(column: Column) -> dict[str, object]:
    return json.loads(column.result.read_text()) if column.result.is_file() else {}


def run(column: Column) -> dict[str, object]:
    """Brings the copy up to date, sets it up, and runs `make test` in it."""
    python = interpreter(column.python)
    if python is None:
        return {"trouble": f"no Python {column.python} here; name one with PYTHON{column.python.replace('.', '_')}"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTHON", "ONLY"))}
    environment |= {name: str(column.copy / value) if name == "PYTHONPATH" else value for name, value in column.environment.items()}
    user = stranger() if column.stranger else None
    if column.stranger and not user and os.geteuid() == 0:
        return {"trouble": "root becomes another user by setpriv, which is not here: install util-linux"}
    bring(column.copy)
    if user and not reads(user, python):
        python, library = portable(python, column.python)
        environment["LD_LIBRARY_PATH"] = str(library)
    log, report = FOLDER / f"{column.name}.log", column.copy / ".pytest_cache" / "report.xml"
    with log.open("w", encoding="utf-8") as out:
        made = subprocess.run(["make", "setup", f"PYTHON={python}"], cwd=column.copy, stdout=out, stderr=out, env=environment, check=False)
    if made.returncode:
        return {"trouble": f"could not be set up; see {log}"}
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    if user:
        give(column.copy, user)
    if column.stranger:
        environment["HOME"] = str(closed())
    alone = Alone(user, column.stranger)
    environment["PYTEST_ADDOPTS"] = f"--junitxml={report.relative_to(column.copy)}"
    kernels = alone.run([".venv/bin/python", "-m", "tests.kernels"], column.copy, environment)
    begun = time.monotonic()
    with log.open("a", encoding="utf-8") as out:
        alone.run(["make", "test"], column.copy, environment, out)
    if not report.is_file():
        return {"trouble": f"ended without a report; see {log}"}
    return counted(report) | {"seconds": round(time.monotonic() - begun), "kernels": kernels.strip().splitlines()[-1]}


def counted(report: Path) -> dict[str, object]:
    """How many passed, failed and were skipped, and which failed."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    which = sorted({f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}" for case in failed})
    return {"passed": len(cases) - len(failed) - skipped, "failed": len(failed), "skipped": skipped, "which": which}


@dataclass(frozen=True)
class Alone:
    """Runs a command as a user, and, for a stranger, as from a script in the background: without Ctrl-C, terminal or open permissions."""

    user: int | None
    strange: bool

    def run(self, command: list[str], folder: Path, environment: dict[str, str], out: IO[str] | int = subprocess.PIPE) -> str:
        if self.user:
            command = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", *command]
        if self.strange:
            command = ["sh", "-c", 'umask 077; trap "" INT; exec nohup "$@"', "sh", *command]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.stdout or ""


def interpreter(version: str) -> Path | None:
    """The one that the environment names, else one on the PATH, else one of pyenv's."""
    named = os.environ.get(f"PYTHON{version.replace('.', '_')}")
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    for one in filter(None, (named, shutil.which(f"python{version}"), *pyenv)):
        asked = [str(one), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2], sys.executable)"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split(maxsplit=1)
        if answer[:1] == [version]:
            return Path(answer[1].strip())
    return None


def stranger() -> int | None:
    """Another user, where we are root and may become one."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 and shutil.which("setpriv") else None


def reads(user: int, python: Path) -> bool:
    asked = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", str(python), "-c", "import ssl"]
    return subprocess.run(asked, capture_output=True, check=False, cwd="/").returncode == 0


def portable(python: Path, version: str) -> tuple[Path, Path]:
    """A copy of a Python that lies in a home, where another user may read it; and the folder of its library."""
    whole = Path(
        subprocess.run([python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, check=True).stdout.strip()
    )
    copy = FOLDER / f"python{version}"
    if not copy.is_dir():
        shutil.copytree(whole, copy, symlinks=True)
    return copy / "bin" / f"python{version}", copy / "lib"


def bring(folder: Path) -> None:
    """Makes the copy hold the files of the code; what is the same already is not touched, so that nothing is set up again for it."""
    wanted = files()
    for name in wanted:
        source, target = ROOT / name, folder / name
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    before = folder / ".files"
    for name in set(before.read_text().split("\0") if before.is_file() else ()) - set(wanted):
        (folder / name).unlink(missing_ok=True)
    before.write_text("\0".join(wanted))


def give(folder: Path, user: int) -> None:
    """All but the virtual environment."""
    for each in (folder, *(path for top in folder.iterdir() if top.name != ".venv" for path in (top, *top.rglob("*")))):
        os.chown(each, user, user, follow_symlinks=False)


def closed() -> Path:
    """A home in which nothing can be written."""
    home = FOLDER / "home"
    home.mkdir(exist_ok=True)
    home.chmod(0o555)
    return home


def table(code: str) -> str:
    lines = ["| | set-up | passed | failed | skipped | seconds | kernels |", "|---|---|---|---|---|---|---|"]
    failed: list[str] = []
    for column in COLUMNS:
        one = found(column)
        what = column.what + ("" if one.get("code", code) == code else " (other code)")
        if not one or "trouble" in one:
            lines.append(f"| {column.name} | {what} | {one.get('trouble', 'not run')} | | | | |")
            continue
        figures = " | ".join(str(one[name]) for name in ("passed", "failed", "skipped", "seconds", "kernels"))
        lines.append(f"| {column.name} | {what} | {figures} |")
        failed += [f"{column.name}: {name}" for name in one["which"]]  # type: ignore[attr-defined]
    return "\n".join([*lines, "", *failed])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
