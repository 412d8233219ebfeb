"""Every verb of the command line, and the server, asked of bundles on one device."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.gate.recipes import LIMIT, GateError, child, environment

SEQ2SEQ, LM, MLM, LABELS = "multi30k-en-de", "tinyshakespeare", "imdb-mlm", "sms-spam"
TEXT = "Kalo minera tika sa."


def commands(place: Path, device: str) -> dict[str, list[str]]:
    """What is asked, by name; the bundles are those that the recipes made, and those that come with regard."""
    runs = place / "runs"
    pairs = place / "pairs.tsv"
    pairs.write_text(f"{TEXT}\t.As akit arenim olak\nMine lo ka.\t.Ak ol enim\n", encoding="utf-8")
    on = ["--device", device]

    def asked(verb: str, name: str, *more: str) -> list[str]:
        return [verb, *more, "--model", str(runs / name), *on]

    return {
        "translate": asked("translate", SEQ2SEQ, TEXT, "Mine lo ka.", "--max-length", "8"),
        "translate, the model that comes with it": ["translate", "I love you.", "--to", "it", *on],
        "translate, n-best as JSON": asked("translate", SEQ2SEQ, TEXT, "--n-best", "2", "--format", "json", "--attention"),
        "translate, drawn": asked("translate", SEQ2SEQ, TEXT, "--temperature", "1", "--samples", "2", "--seed", "1", "--max-length", "8"),
        "generate": asked("generate", LM, TEXT, "--max-length", "12", "--seed", "1"),
        "generate, guessing ahead": asked("generate", LM, TEXT, "--max-length", "12", "--temperature", "0", "--speculate", "ngram"),
        "generate, the model that comes with it": ["generate", "I would like to", "--seed", "2", *on],
        "classify": asked("classify", LABELS, TEXT),
        "fill": asked("fill", MLM, f"{TEXT} [MASK]"),
        "embed": asked("embed", MLM, TEXT),
        "score": asked("score", SEQ2SEQ, TEXT, ".As akit"),
        "evaluate": asked("evaluate", SEQ2SEQ, "--data", str(pairs), "--beam-size", "2"),
        "lengths": asked("lengths", SEQ2SEQ, "--data", str(pairs), "--parts", "2"),
        "view": asked("view", SEQ2SEQ, TEXT, "--out", str(place / "page.html")),
        "check": ["check", str(runs / SEQ2SEQ), *on],
        "info": ["info", str(runs / SEQ2SEQ / "bundle")],
        "models": ["models"],
        "doctor": ["doctor"],
    }


def ask(arguments: list[str], place: Path, device: str, until: float = math.inf) -> str:
    """What a command prints; it must say something and end well."""
    done = child(["-m", "regard", *arguments], place, device, until=until)
    if done.returncode or not (done.stdout + done.stderr).strip():
        raise GateError(f"regard {' '.join(arguments)} ended with {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return done.stdout or done.stderr


def requests(models: Mapping[str, str]) -> dict[str, object]:
    """A body for each way to ask a server, by path; None: a GET."""
    translate, generate, fill, classify = (models[name] for name in (SEQ2SEQ, LM, MLM, LABELS))
    return {
        "/health": None,
        "/api/models": None,
        "/metrics": None,
        "/api/translate": {"model": translate, "texts": [TEXT, "Mine lo ka."], "max_length": 8},
        "/api/generate": {"model": generate, "texts": [TEXT], "max_length": 8, "seed": 1},
        "/api/classify": {"model": classify, "texts": [TEXT]},
        "/api/fill": {"model": fill, "texts": [f"{TEXT} [MASK]"]},
        "/api/embed": {"model": fill, "texts": [TEXT]},
        "/api/score": {"model": translate, "texts": [TEXT], "targets": [".As akit"]},
        "/api/trace": {"model": translate, "text": TEXT},
        "/v1/completions": {"model": generate, "prompt": TEXT, "max_tokens": 8, "seed": 1},
        "/v1/completions, streamed": {"model": generate, "prompt": TEXT, "max_tokens": 8, "seed": 1, "stream": True},
        "/v1/embeddings": {"model": fill, "input": TEXT},
    }


def serve_and_ask(place: Path, device: str, until: float = math.inf) -> dict[str, int]:
    """Bytes of every answer of a server with one bundle of each kind; then it is told to end, and ends well."""
    left = min(LIMIT[device], until - time.monotonic())
    if left <= 0:
        raise GateError("not begun: there was no time left")
    names = {name: name for name in (SEQ2SEQ, LM, MLM, LABELS)}
    models = [part for name in names for part in ("--model", f"{name}={place / 'runs' / name}")]
    server = subprocess.Popen(
        [sys.executable, "-m", "regard", "serve", "--port", "0", "--device", device, *models],
        cwd=place, env=environment(device), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    errors: list[str] = []
    assert server.stdout is not None
    assert server.stderr is not None
    reader = threading.Thread(target=lambda: errors.extend(server.stderr or []), daemon=True)
    reader.start()
    patience = threading.Timer(left, server.kill)  # whoever waits for a dead server is told so at once
    patience.start()
    try:
        line = server.stdout.readline()
        if " at http" not in line:
            server.wait(30)
            raise GateError(f"regard serve did not begin: {line}{''.join(errors)[-3000:]}")
        address = line.rsplit(" at ", 1)[1].strip()
        found = {}
        for path, body in requests(names).items():
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(address + path.split(",")[0], data, {"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=120) as response:
                    found[path] = len(response.read())
            except OSError as error:
                said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
                raise GateError(f"{path}: {error} {said}\n{''.join(errors)[-3000:]}") from error
        time.sleep(0.2)
        server.send_signal(signal.SIGTERM)
        if server.wait(60) != 0:
            raise GateError(f"regard serve ended with {server.returncode}\n{''.join(errors)[-3000:]}")
        return found
    finally:
        patience.cancel()
        server.kill()
        server.wait()
        reader.join(5)
        server.stdout.close()
        server.stderr.close()
