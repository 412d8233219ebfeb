"""What the worker of chat templates does: it writes conversations out by them, in a sandbox where they can only write text."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jinja2.ext
import jinja2.nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

if TYPE_CHECKING:
    from jinja2.parser import Parser


def answer(asked: dict[str, Any]) -> dict[str, str]:
    """The text, or what is wrong with the template or with what it was given."""
    try:
        template = _compiled(asked["template"])
    except MemoryError:
        raise
    except Exception as error:
        return {"problem": f"can't be read: {_said(error)}; import the model again"}
    pieces, length = [], 0
    try:
        for piece in template.generate(asked["values"]):
            pieces.append(piece)
            length += len(piece)
            if length > asked["most"]:
                return {"problem": f"writes more than {asked['most']:,} characters for this conversation; don't trust it"}
    except MemoryError:  # said by whoever knows how much there was
        raise
    except Exception as error:  # whatever a template stumbles over
        return {"problem": f"does not take this conversation: {_said(error)}"}
    return {"text": "".join(pieces)}


def _said(error: Exception) -> str:
    """What went wrong, and in which line of the template where that is known."""
    line, trace = error.lineno if isinstance(error, TemplateSyntaxError) else None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    told = str(getattr(error, "message", None) or getattr(error, "msg", None) or error) or type(error).__name__
    if isinstance(error, RecursionError):
        told = "nested too deeply, or within itself without end"
    return " ".join(told.split())[:300] + ("" if line is None else f" (line {line} of the template)")


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks what a model was trained to say; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  (as the library declares it)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Kept(Namespace):
    """What templates keep things in; names that begin with an underscore would lead into Python itself."""

    def __init__(self, *args: Any, **values: Any) -> None:
        kept = dict(*args, **values)
        for name in kept:
            _check_name(name)
        super().__init__(**kept)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a chat template may not keep anything under {name!r}")


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    sandbox.filters["tojson"] = lambda value, **how: json.dumps(value, **({"ensure_ascii": False} | how))
    sandbox.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _dictionary,  # the class itself would lead further
        "namespace": _Kept,
    }
    return sandbox.from_string(template)


def _dictionary(*args: Any, **values: Any) -> dict[str, Any]:
    return dict(*args, **values)


def _raise(message: str) -> None:
    raise TemplateError(message)
