"""`regard serve` before it serves: what it says where something is missing or wrong."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.errors import ConfigError, installing
from regard.serve.desk import load_all
from regard.serve.run import address_of, bind
from tests.cli.running import run


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "prometheus_client"])
def test_what_is_not_installed_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("regard.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    done = run("serve")
    assert (done.code, done.err) == (1, f"regard: serving needs {missing}, which is not installed; {installing('serve')}\n")


def test_what_can_not_be_served_is_said(tmp_path: Path, bundle: Callable[[str], Path]) -> None:
    done = run("serve", "--model", tmp_path / "nowhere", "--port", "0")
    assert done.code == 1
    assert "there is no model" in done.err
    critic = bundle("critic")
    twice = run("serve", "--model", critic, "--model", critic, "--port", "0")
    assert "two models are called 'run'; give one another name, as in --model other=" in twice.err
    assert run("serve", "--api-key", "").code == 2
    assert run("serve", "--port", "70000").code == 2


def test_others_than_this_machine_are_a_warning(tmp_path: Path) -> None:
    warned = run("serve", "--host", "0.0.0.0", "--port", "0", "--model", tmp_path / "nowhere")
    assert "regard: everyone who reaches this machine may ask; --api-key sets a key\n" in warned.err
    quiet = run("serve", "--host", "0.0.0.0", "--port", "0", "--model", tmp_path / "nowhere", "--api-key", "k")
    assert "everyone" not in quiet.err


def test_the_models_that_come_with_it_are_served_where_none_is_named() -> None:
    from regard.shipped import shipped

    assert list(load_all([], "cpu")) == list(shipped())


def test_addresses() -> None:
    with bind("127.0.0.1", 0) as bound:
        assert address_of(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"
        bound.listen()
        with pytest.raises(ConfigError, match="Address already in use; choose another with --host or --port"):
            bind("127.0.0.1", bound.getsockname()[1])
    with pytest.raises(ConfigError, match="can't serve at nowhere-at-all, port 1: "):
        bind("nowhere-at-all", 1)
    if socket.has_ipv6:
        with bind("::1", 0) as bound:
            assert address_of(bound).startswith("http://[::1]:")
