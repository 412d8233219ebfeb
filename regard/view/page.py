"""One HTML file that opens by a double click: the page's modules, its stylesheet and a trace, in one, without a server or a network.

The page is the one that `regard serve` shows. Its modules keep to a few forms, so that no build step is needed to put them into one script:

- `import { a, b as c } from "./other.js"` or `import * as other from "./other.js"` at the start of a line, names over several lines if need
  be; never in a circle.
- `export` at the start of a line before a function, class or const, or `export { a, b };`. No defaults, nothing reassigned.
- No `import()`, no `import.meta`, no `await` at the top.

Whatever text a trace holds, it stays data: in the JSON every <, > and & is escaped, and a policy within the file allows only the one script
and the one stylesheet that were written here, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.files import write_file

WEB = Path(__file__).parent.parent / "serve" / "web"
MOST = 2_500_000  # characters of the trace, so that the file stays below 3 MB

LINK = re.compile(r"[ \t]*<link\b[^>]*>\n?", re.IGNORECASE)
SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.IGNORECASE | re.DOTALL)
ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
IMPORT = re.compile(
    r"""^import\s+(?:\{(?P<names>[^}]*)\}|\*\s+as\s+(?P<space>[\w$]+))\s+from\s+["']\./(?P<file>[\w.-]+\.js)["'];?[ \t]*$""", re.MULTILINE
)
DECLARED = re.compile(
    r"^export\s+(?=(?:async\s+function|function|class|const)\b(?:\s*\*)?\s+(?:function\s+)?(?P<name>[\w$]+))", re.MULTILINE
)
LISTED = re.compile(r"^export\s*\{(?P<names>[^}]*)\};?[ \t]*$", re.MULTILINE)
LEFT = re.compile(r"^(?:import|export)\b.*|\bimport\s*[(.].*", re.MULTILINE)
ENDS = re.compile(r"</(script|style)|<!--", re.IGNORECASE)


class PageError(RegardError):
    """The page's own files are missing, or not of the form that can be put into one."""


def page(document: dict[str, Any], web: Path = WEB) -> str:
    """The whole file for a trace's document (`regard.view.trace_json.as_json`)."""
    shell = _read(web, "index.html")
    styles = "\n".join(_style(web, name) for name in _stylesheets(shell))
    entry = _entry(shell)
    script = bundled(web, entry)
    shell = LINK.sub(lambda found: "" if _inlined(found[0]) else found[0], shell)
    data = f'<script type="application/json" id="trace">{as_data(document)}</script>'
    parts = f'<style>{styles}</style>\n{data}\n<script type="module">{script}</script>\n'
    shell = SCRIPT.sub("", shell)
    shell = re.sub(r"<title>.*?</title>", lambda _: f"<title>{html.escape(_title(document))}</title>", shell, count=1, flags=re.DOTALL)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy(script, styles)}">\n'
    return _before(_after(shell, "<head>", "\n" + head), "</head>", parts)


def write_page(document: dict[str, Any], path: Path, web: Path = WEB) -> int:
    """Writes the file, whole or not at all, and says how many bytes it has."""
    content = page(document, web).encode("utf-8")
    write_file(path, content)
    return len(content)


def as_data(document: Any) -> str:
    """JSON that nothing within can end: plain ASCII, without <, > and &."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(script: str, styles: str) -> str:
    """What a browser lets the file do: run this script, use this stylesheet, and fetch nothing."""
    allowed = {"script-src": _hash(script), "style-src": _hash(styles), "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    return "; ".join(["default-src 'none'", *(f"{name} {value}" for name, value in allowed.items())])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _title(document: dict[str, Any]) -> str:
    text = " ".join(str(document.get("text", "")).split())
    short = text if len(text) <= 60 else text[:59] + "…"
    return f"{short} · regard".encode("utf-8", "replace").decode() if short else "regard"


# The shell


def _attributes(tag: str) -> dict[str, str]:
    return {name.lower(): double or single for name, double, single in ATTRIBUTE.findall(tag)}


def _inlined(tag: str) -> bool:
    """Whether a link's file is put into the page, or is of no use there."""
    own = _attributes(tag)
    if own.get("href", "").startswith("data:"):
        return False
    if own.get("rel") in ("stylesheet", "modulepreload", "icon", "manifest"):
        return True
    raise PageError(f"index.html names {own.get('href')!r}, which can't be put into one file; leave it out of the page")


def _stylesheets(shell: str) -> list[str]:
    links = map(_attributes, LINK.findall(shell))
    return [own["href"].removeprefix("./").removeprefix("/") for own in links if own.get("rel") == "stylesheet"]


def _style(web: Path, name: str) -> str:
    text = _read(web, name)
    for line in text.splitlines():
        if re.search(r"@import|url\(\s*['\"]?(?!data:|#)", line):
            raise PageError(f"{name} names another file ({line.strip()[:60]!r}), which a page in one file can't have; draw it instead")
    return _closed(name, text)


def _entry(shell: str) -> str:
    scripts = [(_attributes(own), body) for own, body in SCRIPT.findall(shell)]
    modules = [own["src"] for own, _ in scripts if own.get("type") == "module" and "src" in own]
    if len(modules) != 1 or len(scripts) != 1:
        raise PageError(f'index.html should have one <script type="module" src=…> and no other script; it has {len(scripts)}')
    return modules[0].removeprefix("./").removeprefix("/")


def _after(text: str, tag: str, what: str) -> str:
    if tag not in text:
        raise PageError(f"index.html has no {tag}; write it out")
    return text.replace(tag, tag + what, 1)


def _before(text: str, tag: str, what: str) -> str:
    if tag not in text:
        raise PageError(f"index.html has no {tag}; write it out")
    return text.replace(tag, what + tag, 1)


def _read(web: Path, name: str) -> str:
    path = web / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PageError(f"the page's file {path} can't be read ({error.strerror}); install regard again") from error


def _closed(name: str, text: str) -> str:
    """A script or stylesheet that can stand within its element."""
    if found := ENDS.search(text):
        raise PageError(f"{name} has {found[0]!r} in it, which would end the element that it is put into; write it in two parts")
    return text


# The modules


def bundled(web: Path, entry: str) -> str:
    """All modules that the entry needs, each within a function of its own, those that others need first."""
    done: dict[str, str] = {}
    _add(web, entry, done, [])
    return _closed(entry, "\n".join(done.values()))


def _add(web: Path, name: str, done: dict[str, str], path: list[str]) -> None:
    if name in done:
        return
    if name in path:
        raise PageError(f"modules import each other in a circle: {' → '.join([*path, name])}; move what they share into a third")
    text = _read(web, name)
    for found in IMPORT.finditer(text):
        _add(web, found["file"], done, [*path, name])
    done[name] = _wrapped(name, text)


def _wrapped(name: str, text: str) -> str:
    exported = [found["name"] for found in DECLARED.finditer(text)]
    given = {name: name for name in exported}
    for found in LISTED.finditer(text):
        given |= {alias: own for own, alias in _names(found["names"])}
    text = IMPORT.sub(_taken, text)
    text = LISTED.sub("", DECLARED.sub("", text))
    if left := LEFT.search(text):
        line = text.count("\n", 0, left.start()) + 1
        raise PageError(f"{name}, line {line}: {left[0].strip()[:60]!r} is not of a form that can be put into one file; see view/page.py")
    offered = ", ".join(own if alias == own else f"{alias}: {own}" for alias, own in given.items())
    return f"const {_variable(name)} = (() => {{\n{text}\nreturn {{ {offered} }};\n}})();"


def _taken(found: re.Match[str]) -> str:
    """An import as what the other module's function gave; as many lines, so that errors name the right one."""
    lines = "\n" * found[0].count("\n")
    if found["space"]:
        return f"const {found['space']} = {_variable(found['file'])};{lines}"
    names = ", ".join(own if own == alias else f"{own}: {alias}" for own, alias in _names(found["names"]))
    return f"const {{ {names} }} = {_variable(found['file'])};{lines}"


def _names(listed: str) -> list[tuple[str, str]]:
    """a, b as c → (a, a), (b, c)."""
    parts = [part.split() for part in listed.split(",") if part.strip()]
    return [(part[0], part[-1]) for part in parts]


def _variable(file: str) -> str:
    return "module_" + re.sub(r"\W", "_", file.removesuffix(".js"))
