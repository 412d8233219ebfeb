"""One file, whatever text is in it: it holds the page, the trace and nothing that reaches out."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from regard.door import Model, load
from regard.files import OutputError
from regard.view.page import MOST, WEB, PageError, as_data, bundled, page, write_page
from regard.view.trace_json import as_json

INDEX = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>regard</title>
<link rel="stylesheet" href="a.css">
<link rel="stylesheet" href="./b.css">
<link rel="modulepreload" href="tool.js">
<link rel="icon" href="data:,">
<script type="module" src="main.js"></script>
</head>
<body><main></main></body>
</html>
"""
FILES = {
    "index.html": INDEX,
    "a.css": "main { color: red }\n",
    "b.css": "p > a { background: url(data:image/png;base64,AA==) }\n",
    "main.js": "import { add as plus,\n  LIMIT } from \"./tool.js\";\nimport * as shapes from './shapes.js';\n"
    "export function start() { return [plus(LIMIT, 1), new shapes.Box(2).side, shapes.twice(4)]; }\nglobalThis.answer = start();\n",
    "tool.js": "export const LIMIT = 41;\nexport function add(a, b) { return a + b; }\nconst hidden = 1; // of this module alone\n",
    "shapes.js": 'import { add } from "./tool.js";\nconst hidden = 2;\nexport class Box { constructor(side) { this.side = side; } }\n'
    "function twice(x) { return add(x, x); }\nexport async function later() { return hidden; }\nexport { twice, hidden as secret };\n",
}
NASTY = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]></SCRIPT >",
    "&lt;/script&gt; \u2028 \u2029 \x00 'quotes\" \\",
    "<title></title><img src=x onerror=alert(1)>",
    "</head></html>",
    "{{text}} $& \\1 \\g<0>",
]


@pytest.fixture
def web(tmp_path: Path) -> Path:
    folder = tmp_path / "web"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


class Reader(HTMLParser):
    """What a browser sees: elements, and the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.inside = "nothing"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        self.inside = str(dict(attributes).get("id") or tag)

    def handle_endtag(self, tag: str) -> None:
        self.inside = "nothing"

    def handle_data(self, data: str) -> None:
        self.texts[self.inside] = self.texts.get(self.inside, "") + data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


@pytest.mark.parametrize("text", NASTY)
def test_text_stays_text(web: Path, text: str) -> None:
    document = {"text": text, "source": {"tokens": list(text)}}
    reader = read(page(document, web))
    assert json.loads(reader.texts["trace"]) == document
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert text.split()[0][:8] in reader.texts["title"]


def test_json_that_nothing_can_end() -> None:
    for text in NASTY:
        found = as_data({text: [text]})
        assert found.isascii()
        assert not set("<>&") & set(found)
        assert json.loads(found) == {text: [text]}


def test_the_policy_allows_just_what_is_there(web: Path) -> None:
    reader = read(page({"text": "hello"}, web))
    policy = next(own["content"] for tag, own in reader.elements if own.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(reader.texts[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    first = next(own for tag, own in reader.elements if tag == "meta")
    assert "http-equiv" in first  # before anything that it is about


def test_nothing_is_left_to_fetch(web: Path) -> None:
    text = page({"text": "hello"}, web)
    for tag, own in read(text).elements:
        assert "src" not in own
        assert tag != "link" or str(own["href"]).startswith("data:")
    assert "color: red" in text
    assert text.index("color: red") < text.index("p > a")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the script; the page is tested in a browser too")
def test_the_script_does_what_the_modules_do(web: Path) -> None:
    script = bundled(web, "main.js")
    run = subprocess.run(["node", "-e", script + "\nconsole.log(JSON.stringify(answer))"], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == [42, 2, 8]


def test_modules_in_order_and_apart(web: Path) -> None:
    script = bundled(web, "main.js")
    order = re.findall(r"^const (module_\w+) = \(", script, re.MULTILINE)
    assert order == ["module_tool", "module_shapes", "module_main"]
    assert "const { add: plus, LIMIT } = module_tool;\n" in script
    assert "const shapes = module_shapes;" in script
    assert "return { Box, later, twice, secret: hidden };" in script
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tool.js", 'export default 3;', r"tool.js, line 1: 'export default 3;'"),
        ("tool.js", 'const a = 1;\nexport let b = 2;', r"tool.js, line 2"),
        ("tool.js", 'const later = import("./x.js");', r"tool.js, line 1"),
        ("tool.js", 'import "./main.js";', r"tool.js, line 1"),
        ("tool.js", 'import { start } from "./main.js";', r"in a circle: main.js → tool.js → main.js"),
        ("tool.js", 'export const a = "</script>";', r"would end the element"),
        ("main.js", 'import { a } from "./none.js";', r"none.js can't be read"),
        ("a.css", "main { background: url(cat.png) }", r"a.css names another file"),
        ("a.css", "@import 'b.css';", r"a.css names another file"),
        ("index.html", INDEX.replace("</head>", ""), r"has no </head>"),
        ("index.html", INDEX.replace('<script type="module" src="main.js"></script>', ""), r"should have one"),
        ("index.html", INDEX.replace("<body>", "<body><script>alert(1)</script>"), r"no other script"),
        ("index.html", INDEX.replace("</head>", '<link rel="preload" href="x.woff"></head>'), r"'x.woff', which can't be put"),
    ],
)  # fmt: skip
def test_what_can_not_be_put_into_one_file(web: Path, file: str, text: str, message: str) -> None:
    (web / file).write_text(text)
    with pytest.raises(PageError, match=message):
        page({"text": "hello"}, web)


def test_written_whole_or_not_at_all(web: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    with pytest.raises(OutputError, match=r"there is no folder .*new; make it first"):
        write_page({"text": "é"}, path, web)
    path.parent.mkdir()
    assert write_page({"text": "é"}, path, web) == path.stat().st_size
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="there is no folder"):
        write_page({}, tmp_path / "file" / "page.html", web)


@pytest.mark.parametrize("name", ["translator", "writer", "critic", "guesser", "recurrent"])
def test_the_page_itself(model: Callable[[str], Model], name: str) -> None:
    """The modules that are served can be put into one file, for every family."""
    loaded = model(name)
    text = {"writer": "the cat", "critic": "a lovely film", "guesser": "the [MASK] sat"}.get(name, "3 1 4")
    document: dict[str, Any] = as_json(loaded.trace(text, "back" if name == "translator" else None))
    written = page(document, WEB)
    assert json.loads(read(written).texts["trace"]) == document
    assert len(written) < 3_000_000


def test_twelve_words_through_the_translator_that_ships(tmp_path: Path) -> None:
    """Nothing is left out, and the file stays below 3 MB."""
    text = "The little girl is looking at the beautiful flowers in the garden."
    assert len(text.split()) == 12
    for to in ("it", "hi"):
        document = as_json(load("translator", device="cpu").trace(text, to, n_best=4), most=MOST)
        assert document["left_out"] == []
        assert 1_500_000 < write_page(document, tmp_path / f"{to}.html") < 3_000_000
