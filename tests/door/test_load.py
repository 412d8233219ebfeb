"""A bundle opened: what its model can do, and what is said of one that is broken."""

from __future__ import annotations

import json
import pydoc
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.bundle import save_bundle
from regard.door import Model, load
from regard.door.verbs import verbs_of
from regard.errors import BundleError, ConfigError, RegardError
from regard.recipe import TokenizerSettings
from regard.shipped import find_bundle, shipped
from regard.text.tokenizer import Tokenizer
from tests.families import small

Bundles = Callable[[str], Path]
Models = Callable[[str], Model]
VERBS = {
    "translator": ("translate", "score", "evaluate"),
    "recurrent": ("translate", "score", "evaluate"),
    "writer": ("generate", "score", "evaluate"),
    "critic": ("classify", "embed", "evaluate"),
    "guesser": ("fill", "embed", "evaluate"),
}
ASKED: dict[str, tuple[Any, ...]] = {
    "translate": ("1 2", "back"),
    "generate": ("1 2",),
    "classify": ("1 2",),
    "fill": ("1 [MASK]",),
    "embed": ("1 2",),
    "score": ("1 2", "2 1"),
    "evaluate": ("nowhere.tsv",),
}


@pytest.mark.parametrize("name", VERBS)
def test_what_a_model_can_do_and_what_it_cannot(model: Models, name: str) -> None:
    loaded = model(name)
    assert loaded.verbs == VERBS[name] == verbs_of(loaded.config)
    for verb in ASKED.keys() - set(loaded.verbs):
        with pytest.raises(RegardError, match=rf"it can .*, but not {verb}.*") as error:
            getattr(loaded, verb)(*ASKED[verb])
        assert all(able in str(error.value) for able in loaded.verbs)


def test_an_encoder_without_heads_can_embed(tmp_path: Path) -> None:
    save_bundle(small("bert-base", masked_words=False, labels=()), tmp_path / "b")
    assert load(tmp_path / "b").verbs == ("embed",)


@pytest.mark.parametrize(
    ("name", "verb"), [("translator", "translate"), ("writer", "generate"), ("critic", "classify"), ("guesser", "fill")]
)
def test_one_text_or_many(model: Models, name: str, verb: str) -> None:
    texts = ["1 2 [MASK]", "3 4 5 [MASK]"]
    more = {"to": "back"} if verb == "translate" else {"seed": 1} if verb == "generate" else {}
    ask = getattr(model(name), verb)
    one, many = ask(texts[0], **more), ask(iter(texts), **more)
    assert isinstance(many, list)
    assert str(one) == str(many[0])
    assert len(many) == 2
    assert ask([], **more) == []
    with pytest.raises(RegardError, match=rf"{verb}: texts\[1\] is int, not a text; leave it out, or give"):
        ask(["1 2 [MASK]", 3], **more)


def test_nothing_to_embed_or_score(model: Models) -> None:
    assert model("critic").embed([]).shape == (0, 32)
    assert model("translator").score([], [], to="back") == []
    with pytest.raises(RegardError, match=r"embed: texts\[0\] is bytes \(decode them first\), not a text"):
        model("critic").embed([b"x"])  # type: ignore[list-item]


def test_a_run_stands_for_its_bundle(bundle: Bundles) -> None:
    assert load(bundle("critic").parent).classify("a lovely film").label == "good"


def test_a_folder_goes_before_a_model_that_ships(bundle: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "translator").mkdir()  # nothing in it, so it can't be meant
    assert find_bundle("translator") == shipped()["translator"]
    shutil.copytree(bundle("critic"), tmp_path / "translator" / "bundle")
    assert load("translator").verbs == VERBS["critic"]


def test_the_package_opens_the_door() -> None:
    assert regard.load is load
    assert regard.Model is Model
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = regard.lod  # type: ignore[attr-defined]


def test_the_package_shows_what_is_public_and_nothing_else() -> None:
    shown = {name for name in dir(regard) if not name.startswith("__")}
    assert shown == {"load", "Model"}
    assert "__version__" in dir(regard)
    assert set(regard.__all__) <= set(dir(regard))
    said = pydoc.plain(pydoc.render_doc(regard))
    assert re.search(r"load\(\s*name: 'str \| Path',\s*\*,\s*device:", said)  # on one line, or on one each
    assert "class Model" in said
    assert "translate(" in said
    assert not any(strange in said for strange in ("__getattr__", "TYPE_CHECKING", "annotations ="))


def test_looking_at_the_names_of_the_package_loads_nothing() -> None:
    code = "import sys, regard; assert 'load' in dir(regard); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_importing_regard_does_not_load_torch() -> None:
    code = "import sys, regard; assert 'torch' not in sys.modules; regard.load; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"there is no model 'nowhere/at-all'; give the folder of a bundle"):
        load("nowhere/at-all")
    with pytest.raises(BundleError, match=r"is no bundle: it has no config.json"):
        load(tmp_path)


@pytest.mark.parametrize("device", ["foo", "cuda"])
def test_a_device_that_is_not_there(bundle: Bundles, device: str) -> None:
    if device == "cuda" and torch.cuda.device_count():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match=f"the device '{device}' can't be used here .*; leave it out, or take cpu"):
        load(bundle("critic"), device=device)


# Broken bundles


@pytest.fixture
def copied(bundle: Bundles, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(bundle(name), tmp_path / name))


def test_weights_cut_short(copied: Bundles) -> None:
    folder = copied("translator")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(BundleError, match=r"model.safetensors is damaged or cut short .*; copy it again"):
        load(folder)


def test_a_tokenizer_that_is_missing(copied: Bundles) -> None:
    folder = copied("translator")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match=r"has no tokenizer, so it takes token ids and not text; .* add a tokenizer.json"):
        load(folder).translate("1 2", "back")


def test_a_source_tokenizer_that_is_missing(copied: Bundles) -> None:
    folder = copied("apart")
    assert load(folder).translate("1 2").text
    (folder / "source_tokenizer.json").unlink()
    with pytest.raises(BundleError, match=r"lacks source_tokenizer.json, with which it reads"):
        load(folder)


def test_a_tokenizer_cut_short(copied: Bundles) -> None:
    folder = copied("critic")
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:-100])
    with pytest.raises(BundleError, match=r"tokenizer.json: the tokenizer is damaged or of another format"):
        load(folder)


def test_a_tokenizer_of_another_model(copied: Bundles, tmp_path: Path) -> None:
    folder = copied("translator")
    Tokenizer.train(["some other text, of another model"], TokenizerSettings(size=300)).save(folder / "tokenizer.json")
    with pytest.raises(BundleError, match=r"its tokenizer has 28\d tokens and the model \d+; they don't belong together"):
        load(folder)


def test_a_config_of_another_model(copied: Bundles) -> None:
    folder = copied("translator")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"width": 64}))
    with pytest.raises(BundleError, match=r"in the weights but .* by the config"):
        load(folder)


def test_half_precision_on_disk_is_float32_on_a_cpu(copied: Bundles, tmp_path: Path) -> None:
    from regard.bundle import load_bundle

    load_bundle(copied("critic")).save(tmp_path / "half", precision="bfloat16")
    half = load(tmp_path / "half")
    assert half.network.dtype == torch.float32
    assert half.classify("a lovely film").label == "good"
