"""A bundle is the model: what is saved is what is loaded, and whatever is wrong with a folder is said."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.bundle import Bundle, load_bundle, save_bundle
from regard.data.batch import Tokens
from regard.errors import BundleError, ConfigError
from regard.models import build
from regard.presets import preset
from regard.storage import Precision
from tests.families import FAMILIES, outputs, sentences, small


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_equals_loaded_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = small(name).float()
    bundle = load_bundle(save_bundle(model, tmp_path / "b"))
    assert isinstance(bundle, Bundle)
    assert bundle.config == model.config
    assert not bundle.model.training
    assert bundle.model.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in bundle.model.state_dict().items())
    assert all(parameter.requires_grad for parameter in bundle.model.parameters())
    batch = Tokens.pad(sentences(5, 2)), Tokens.pad(sentences(4, 7))
    assert torch.equal(outputs(bundle.model, *batch), outputs(model, *batch))


def test_large_models_are_sharded(tmp_path: Path) -> None:
    model = small("gpt2")
    save_bundle(model, tmp_path / "b", shard_bytes=8000)
    files = sorted(path.name for path in (tmp_path / "b").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(model.state_dict())
    assert all((tmp_path / "b" / file).stat().st_size < 16000 for file in files)
    loaded = load_bundle(tmp_path / "b").model.state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in model.state_dict().items())


def test_a_loaded_model_trains_on(tmp_path: Path) -> None:
    model = load_bundle(save_bundle(small("rnn-attention").float(), tmp_path / "b")).model.train()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    outputs(model, Tokens.pad(sentences(3)), Tokens.pad(sentences(4))).logsumexp(-1).sum().backward()
    optimiser.step()
    after = load_bundle(tmp_path / "b").model.state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())  # the file is not the memory that was trained
    assert any(not torch.equal(model.state_dict()[key], tensor) for key, tensor in before.items())


def test_files_are_as_open_as_any_other(tmp_path: Path) -> None:
    save_bundle(small("gpt2"), tmp_path / "b")
    (tmp_path / "plain").write_text("")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "b").iterdir()}
    assert modes == {(tmp_path / "plain").stat().st_mode & 0o777}


def test_precision_can_be_chosen(tmp_path: Path) -> None:
    save_bundle(small("gpt2").float(), tmp_path / "b")
    assert load_bundle(tmp_path / "b", dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_the_tokenizer_has_its_place(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    bundle = load_bundle(save_bundle(small("gpt2"), tmp_path / "b", tokenizer=tmp_path / "t.json", card="# Mine\n"))
    assert bundle.tokenizer == tmp_path / "b" / "tokenizer.json"
    assert (tmp_path / "b" / "README.md").read_text() == "# Mine\n"


def test_a_bundle_is_replaced_whole(tmp_path: Path) -> None:
    save_bundle(small("gpt2"), tmp_path / "b", shard_bytes=8000)
    save_bundle(small("rnn-plain"), tmp_path / "b")
    assert load_bundle(tmp_path / "b").config.kind == "rnn"
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]  # nothing temporary stays


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BundleError, match="exists and is not just a bundle; choose a new or empty folder"):
        save_bundle(small("gpt2"), tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(BundleError, match="exists and is not just a bundle"):
        save_bundle(small("gpt2"), tmp_path / "file")


@pytest.mark.parametrize("config", ['{"kind": "Deployment"}', '{"kind": "lm"}', '{"kind": []}', "nothing"])
def test_a_config_of_that_name_does_not_make_a_folder_ours(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "precious.py").write_text("years of work")
    with pytest.raises(BundleError, match="exists and is not just a bundle"):
        save_bundle(small("gpt2"), tmp_path)
    assert (tmp_path / "src" / "precious.py").exists()


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_interruption_leaves_the_old_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    """Ctrl-C at the worst moment: between taking the old one away and putting the new one in its place."""
    from regard import storage

    save_bundle(small("gpt2"), tmp_path / "b")
    if not exchanges:
        monkeypatch.setattr(storage, "_exchange", lambda one, other: False)
    rename, calls = Path.rename, []

    def interrupted(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == (1 if exchanges else 2):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    if exchanges:
        monkeypatch.setattr(storage, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_bundle(small("rnn-plain"), tmp_path / "b")
    monkeypatch.undo()
    assert load_bundle(tmp_path / "b").config.kind == "lm"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_bundle_is_written_where_folders_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: folders are not opened, only what may be written is flushed, and no library goes without a name."""
    from regard import storage

    modes: dict[int, int] = {}

    class Windows:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def open(self, path: Path, flags: int) -> int:
            if path.is_dir():
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            handle = os.open(path, flags)
            modes[handle] = flags
            return handle

        def fsync(self, handle: int) -> None:
            if modes[handle] & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, "Bad file descriptor")
            os.fsync(handle)

    def unnamed(name: str | None, **_: Any) -> Any:
        raise TypeError("argument of type 'NoneType' is not iterable")

    monkeypatch.setattr(storage, "WINDOWS", True)
    monkeypatch.setattr(storage, "os", Windows())
    monkeypatch.setattr(storage.ctypes, "CDLL", unnamed)
    for _ in range(2):  # a new one, and in the place of another
        save_bundle(small("gpt2"), tmp_path / "b")
    monkeypatch.undo()
    assert load_bundle(tmp_path / "b").config.kind == "lm"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_replacing_works_without_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard import storage

    monkeypatch.setattr(storage, "_exchange", lambda one, other: False)
    save_bundle(small("gpt2"), tmp_path / "b")
    save_bundle(small("rnn-plain"), tmp_path / "b")
    assert load_bundle(tmp_path / "b").config.kind == "rnn"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_link_goes_on_pointing_where_it_points(tmp_path: Path) -> None:
    save_bundle(small("gpt2"), tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    save_bundle(small("rnn-plain"), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load_bundle(tmp_path / "real").config.kind == "rnn"


def test_a_compiled_model_is_saved_as_itself(tmp_path: Path) -> None:
    model = small("gpt2")
    compiled = torch.compile(model, backend="eager")
    assert load_bundle(save_bundle(compiled, tmp_path / "b")).model.state_dict().keys() == model.state_dict().keys()  # type: ignore[arg-type]
    with pytest.raises(BundleError, match="a Linear is no model of ours"):
        save_bundle(torch.nn.Linear(2, 2), tmp_path / "c")  # type: ignore[arg-type]


def test_a_bundle_saved_again_keeps_what_belongs_to_it(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    save_bundle(small("gpt2"), tmp_path / "b", tokenizer=tmp_path / "t.json", source_tokenizer=tmp_path / "t.json", card="# Mine\n")
    bundle = load_bundle(tmp_path / "b")
    with torch.no_grad():
        bundle.model.embed.weight.zero_()
    for folder in (bundle.save(), bundle.save(tmp_path / "elsewhere")):
        again = load_bundle(folder)
        assert not again.model.embed.weight.any()
        assert again.tokenizer is not None
        assert again.source_tokenizer is not None
        assert (folder / "README.md").read_text() == "# Mine\n"


def test_a_bundle_of_a_newer_regard_is_refused(tmp_path: Path) -> None:
    save_bundle(small("gpt2"), tmp_path / "b")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["format"] == 1
    (tmp_path / "b" / "config.json").write_text(json.dumps(config | {"format": 2}))
    with pytest.raises(BundleError, match="was written by a newer regard; upgrade"):
        load_bundle(tmp_path / "b")


def test_weights_of_mixed_or_whole_numbers_are_refused(tmp_path: Path) -> None:
    save_bundle(small("gpt2").float(), tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    save_file(tensors | {"embed.weight": tensors["embed.weight"].half()}, tmp_path / "b" / "model.safetensors")
    with pytest.raises(BundleError, match="the weights are float16, float32; save them all in one"):
        load_bundle(tmp_path / "b")
    save_file({key: tensor.long() for key, tensor in tensors.items()}, tmp_path / "b" / "model.safetensors")
    with pytest.raises(BundleError, match="the weights are int64"):
        load_bundle(tmp_path / "b")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is no folder"):
        load_bundle(tmp_path / "nothing")
    with pytest.raises(BundleError, match=r"is no bundle: it has no config\.json"):
        load_bundle(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(BundleError, match="is a Hugging Face model, not a bundle; make one of it with: regard import"):
        load_bundle(tmp_path)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return save_bundle(small("gpt2"), tmp_path / "b")


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_named(bundle: Path, keep: float) -> None:
    whole = (bundle / "model.safetensors").read_bytes()
    (bundle / "model.safetensors").write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(BundleError, match=r"b/model\.safetensors is damaged or cut short .*copy it again"):
        load_bundle(bundle)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_bundle(small("gpt2"), tmp_path / "b", shard_bytes=8000)
    shard = sorted((tmp_path / "b").glob("model-00002*"))[0]
    shard.unlink()
    with pytest.raises(BundleError, match=f"{shard.name} is missing"):
        load_bundle(tmp_path / "b")


@pytest.mark.parametrize("place", ["../../elsewhere.safetensors", "/etc/passwd", "sub/../../x.safetensors"])
def test_an_index_may_not_point_outside_its_folder(tmp_path: Path, place: str) -> None:
    save_bundle(small("gpt2"), tmp_path / "b", shard_bytes=8000)
    path = tmp_path / "b" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], place)
    path.write_text(json.dumps(index))
    with pytest.raises(BundleError, match=r"model\.safetensors\.index\.json names .*, which is no file of its own folder"):
        load_bundle(tmp_path / "b")


def test_weights_that_do_not_fit_are_named(bundle: Path) -> None:
    tensors = load_file(bundle / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k != "embed.weight"}, bundle / "model.safetensors")
    with pytest.raises(BundleError, match=r"the weights lack 'embed\.weight'"):
        load_bundle(bundle)
    save_file(tensors | {"stray": torch.zeros(1)}, bundle / "model.safetensors")
    with pytest.raises(BundleError, match="the weights have 'stray'"):
        load_bundle(bundle)
    save_file(tensors | {"embed.weight": torch.zeros(3, 3)}, bundle / "model.safetensors")
    with pytest.raises(BundleError, match=r"'embed\.weight' is \(3, 3\) in the weights but \(31, 24\) by the config"):
        load_bundle(bundle)


def test_a_misspelt_key_in_a_config_is_named(bundle: Path) -> None:
    config = json.loads((bundle / "config.json").read_text())
    config["hedas"] = config.pop("heads")
    (bundle / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"config\.json: unknown key 'hedas'; did you mean 'heads'\?"):
        load_bundle(bundle)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", r"config\.json, line 1: not JSON"),
        (b'{"a":' * 100000, "is nested deeper than any config"),
        (b"[]", r"should hold a JSON object, not a list"),
        (b'{"kind": "\xff"}', r"is not UTF-8 text \(byte 10\)"),
    ],
)
def test_a_broken_config_is_named(bundle: Path, content: bytes, says: str) -> None:
    (bundle / "config.json").write_bytes(content)
    with pytest.raises(BundleError, match=says):
        load_bundle(bundle)


def test_a_full_disk_leaves_the_old_bundle(small_disk: Path) -> None:
    old = small("gpt2", width=8, heads=2, feedforward=8, context=8).float()
    save_bundle(old, small_disk / "b")
    with pytest.raises(BundleError, match=r"could not write .*No space left on device.*; free some space"):
        save_bundle(small("gpt2", width=128, feedforward=512), small_disk / "b")
    kept = load_bundle(small_disk / "b").model.state_dict()
    assert all(torch.equal(kept[key], tensor) for key, tensor in old.state_dict().items())
    assert [path.name for path in small_disk.iterdir()] == ["b"]
    del kept


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 0.0), ("bfloat16", 4e-3), ("float16", 5e-4), ("int8", 4e-3)])
def test_less_precision_on_disk_is_close(tmp_path: Path, precision: Precision, tolerance: float) -> None:
    """Of each row of each matrix, no number is farther off than its rounding; all comes back in float32 where it was asked for."""
    model = build(preset("transformer-tiny"))
    save_bundle(model, tmp_path / "small", precision=precision)
    loaded = load_bundle(tmp_path / "small", dtype=torch.float32).model
    for (name, tensor), (_, again) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        largest = tensor.abs().amax(-1, keepdim=True) if tensor.dim() == 2 else tensor.abs()
        assert again.dtype == torch.float32
        assert ((tensor - again).abs() <= tolerance * largest + 1e-7).all(), name
    bytes_each = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}[precision]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert (tmp_path / "small" / "model.safetensors").stat().st_size < 1.05 * bytes_each * parameters + 60_000


def test_eight_bits_without_their_scales_are_an_error(tmp_path: Path) -> None:
    model = build(preset("transformer-tiny"))
    save_bundle(model, tmp_path / "small", precision="int8")
    tensors = load_file(tmp_path / "small" / "model.safetensors")
    del tensors["embed.weight.scale"]
    save_file(tensors, tmp_path / "small" / "model.safetensors")
    with pytest.raises(BundleError, match=r"'embed.weight' are in 8 bits, but their scales are missing"):
        load_bundle(tmp_path / "small")
