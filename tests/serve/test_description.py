"""The OpenAPI description, tried out by schemathesis: what it says may be sent is sent, and much that it does not say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regard.serve.settings import Settings
from tests.serve.live import Start

pytest.importorskip("schemathesis")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance"
# What only this server's models know: with words by chance, hardly a request would get as far as a model.
KNOWN = {"to": ["back", "same"], "target": ["back", "same"], "source": ["en", "auto"]}
MODELS = {
    "Translate": "translator",
    "Generate": "writer",
    "Classify": "critic",
    "Fill": "guesser",
    "Embed": "critic",
    "Score": "translator",
}
MODELS |= {"Completion": "writer", "Chat": "writer", "Embeddings": "critic", "TraceOf": "translator"}
IN_ADDRESSES = {"to": ["back", "same"], "model": ["translator"], "name": ["reverse"]}


def narrowed(description: dict[str, Any]) -> dict[str, Any]:
    """The description with names that exist."""

    def walk(node: Any) -> None:
        for name, schema in (node.get("properties") or {}).items() if isinstance(node, dict) else ():
            if name in KNOWN:
                schema.clear()
                schema["enum"] = KNOWN[name]
        for parameter in node.get("parameters", ()) if isinstance(node, dict) else ():
            if parameter["name"] in IN_ADDRESSES:
                parameter["schema"] = {"enum": IN_ADDRESSES[parameter["name"]]}
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(inner)

    walk(description["paths"])
    walk({name: schema for name, schema in description["components"]["schemas"].items() if name in MODELS})
    for name, schema in description["components"]["schemas"].items():
        if name in MODELS:
            schema["properties"]["model"] = {"enum": [MODELS[name]]}
            schema["required"] = sorted({*schema.get("required", []), *({"to"} & schema["properties"].keys())})
    return description


@pytest.mark.slow
def test_schemathesis_finds_no_server_error_and_nothing_undescribed(start: Start, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "reverse"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 50, "time": 1.5, "kind": "train", "loss": 3.0}\n')
    live = start(Settings(runs=run.parent, workers=2))
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(narrowed(live.get("/openapi.json").json)))
    options = ["--checks", CHECKS, "--max-examples", "25", "--phases", "examples,coverage,fuzzing", "--mode", "all", "--seed", "1"]
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", live.address, *options, "--no-color"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    selected = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", ran.stdout)
    assert selected is not None, ran.stdout[-2000:]
    assert selected[1] == selected[2] == selected[3]
    assert live.get("/health").json["status"] == "ok"
    done = live.desk.metrics.registry
    models = {"translate": "translator", "trace": "translator", "generate": "writer", "classify": "critic", "embed": "critic"}
    for verb, model in models.items():
        assert (done.get_sample_value("regard_texts_total", {"model": model, "verb": verb}) or 0) > 10, verb  # they got as far as a model
    assert (done.get_sample_value("regard_requests_total", {"route": "/api/runs/{name}", "status": "200"}) or 0) > 5
