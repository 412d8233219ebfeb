"""Bundles for other libraries: refused up front where one has no such model, and checked against the original before they are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from regard.bundle import CARD, SOURCE_TOKENIZER, TOKENIZER, read_config
from regard.config import EncoderConfig, LanguageModelConfig, ModelConfig
from regard.errors import nearest
from regard.interop.original import SENTENCES, ExportError, Original, Report
from regard.storage import is_utf8, readable_name, replacing
from regard.text.tokenizer import Tokenizer

Target = Literal["huggingface", "ctranslate2", "onnx"]
Head = Literal["labels", "masked-words", "none"]
ExportPrecision = Literal["float32", "int8"]


def export(
    folder: str | Path,
    to: str,
    out: str | Path,
    *,
    precision: str = "float32",
    head: str | None = None,
    sentences: Sequence[str] = (),
) -> Report:
    """Writes a bundle for another library and says how close it is. If it is not close, or anything fails, nothing is written.

    `precision`: "int8" for CTranslate2. `head`: which of an encoder's heads a Hugging Face class is to have. `sentences`: what to try it
    on, instead of a few of our own.
    """
    folder, out = Path(folder), Path(out)
    if not is_utf8(out.resolve()):  # no other library opens what was written there, and it could not be checked
        raise ExportError(
            f"{out} is in no place that other libraries read, since its name is not UTF-8; {readable_name()} or choose another"
        )
    own = folder / TOKENIZER
    refuse(read_config(folder), to, precision=precision, head=head, tokenizer=Tokenizer.load(own) if own.is_file() else None)
    if to == "huggingface" and (folder / SOURCE_TOKENIZER).is_file():
        raise ExportError(
            f"{folder} reads with one tokenizer and writes with another ({SOURCE_TOKENIZER}), and AutoTokenizer knows one; "
            "export it to onnx or ctranslate2"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} exists already; choose a new or empty folder")
    original = Original(folder, [text for text in sentences if text.strip()] or SENTENCES)
    with replacing(out) as new:
        if to == "huggingface":
            from regard.interop import export_huggingface

            report = export_huggingface.write(original, new, head)
        elif to == "ctranslate2":
            from regard.interop import export_ctranslate2

            report = export_ctranslate2.write(original, new, precision)
        else:
            from regard.interop import export_onnx

            report = export_onnx.write(original, new)
        (new / CARD).write_text(card(original, to, report), encoding="utf-8")
    return report


def refuse(
    config: ModelConfig, to: str, *, precision: str = "float32", head: str | None = None, tokenizer: Tokenizer | None = None
) -> None:
    """An error that says why, where such a model can't go there. Nothing is read or written."""
    for what, value, known in (("target", to, get_args(Target)), ("precision", precision, get_args(ExportPrecision))):
        if value not in known:
            raise ExportError(f"the {what} {value!r} is unknown; {nearest(value, known)}")
    if head is not None and head not in get_args(Head):
        raise ExportError(f"the head {head!r} is unknown; {nearest(head, get_args(Head))}")
    if precision != "float32" and to != "ctranslate2":
        raise ExportError(f"precision {precision} is for ctranslate2; {to} is written in float32, so leave it out")
    if head is not None and to != "huggingface":
        raise ExportError(f"a head is chosen for huggingface; {to} has all of them, so leave it out")
    if to == "huggingface":
        from regard.interop import export_huggingface

        export_huggingface.refuse(config, tokenizer, head)
    elif to == "ctranslate2":
        from regard.interop import export_ctranslate2

        export_ctranslate2.refuse(config)
    else:
        from regard.interop import export_onnx

        export_onnx.refuse(config)


def card(original: Original, to: str, report: Report) -> str:
    """How it is used and how close it is, and then the card of the bundle with its licence."""
    own = original.folder / CARD
    told = own.read_text(encoding="utf-8") if own.is_file() else ""
    how = _in_huggingface(original, report) if to == "huggingface" else _as_program(original, to)
    return f"# {report.made}\n\nExported by regard. In the check, {report}.\n\n{how}\n{told}".rstrip() + "\n"


def _in_huggingface(original: Original, report: Report) -> str:
    config = original.config
    if original.tokenizer is None:
        return f"A {report.made} takes token ids; there is no tokenizer with it.\n"
    if isinstance(config, EncoderConfig):
        auto = {"ForSequenceClassification": "AutoModelForSequenceClassification", "ForMaskedLM": "AutoModelForMaskedLM"}
        name = next((name for end, name in auto.items() if report.made.endswith(end)), "AutoModel")
        use = 'model(**tokenizer("What a lovely film!", return_tensors="pt"))'
    elif isinstance(config, LanguageModelConfig):
        name, use = "AutoModelForCausalLM", _generated("Once upon a time", "max_new_tokens=40")
    else:
        tag = f"<to:{original.tags[-1]}>" if original.tags else ""
        name, use = "AutoModelForSeq2SeqLM", _generated(f"{tag}I love you very much.", "num_beams=4")
    return (
        f"```python\nfrom transformers import {name}, AutoTokenizer\n\n"
        f'tokenizer, model = AutoTokenizer.from_pretrained("."), {name}.from_pretrained(".")\n{use}\n```\n'
    )


def _generated(text: str, options: str) -> str:
    return (
        f'written = model.generate(**tokenizer("{text}", return_tensors="pt"), {options})\n'
        "print(tokenizer.decode(written[0], skip_special_tokens=True))"
    )


def _as_program(original: Original, to: str) -> str:
    from regard.interop.loops import DOES

    does = DOES[original.config.kind]
    library = {"ctranslate2": "ctranslate2", "onnx": "numpy onnxruntime"}[to]
    example = {"translate": '"I love you very much."', "generate": '"Once upon a time"', "read": '"What a lovely film!"'}[does]
    tag = f" --to {original.tags[-1]}" if original.tags and does == "translate" else ""
    if original.tokenizer is None:
        return f"`{does}.py` shows how it is run, with {library}; it takes token ids, as there is no tokenizer.\n"
    return f"```sh\npip install {library} tokenizers\npython {does}.py {example}{tag}\n```\n"
