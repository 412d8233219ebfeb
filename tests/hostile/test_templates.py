"""Chat templates from anywhere: they reach nothing, take no more than they may, and what is wrong with them is one sentence."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

import pytest

from regard.door import Model, load
from regard.door.chat import render
from regard.errors import RegardError
from regard.serve.settings import Limits, Settings
from regard.text import chat_template
from regard.text.chat_template import ChatTemplate, ChatTemplateError
from regard.text.foreign import ForeignTokenizer
from tests.door.talker import talker
from tests.hostile.test_worker import LINUX, ROOT, gone
from tests.interop.ggufs import CHATML
from tests.serve.live import Live, Reply, together, until
from tests.signals import heard

TALK = [{"role": "user", "content": "Where are you going?"}]
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talker(tmp_path_factory.mktemp("talker"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, device="cpu")


@pytest.fixture
def taught(model: Model) -> Iterator[Callable[[str], Model]]:
    """The same model, by another template."""
    tokenizer = model.tokenizer
    assert isinstance(tokenizer, ForeignTokenizer)
    assert tokenizer.conversations is not None
    before = tokenizer.conversations

    def by(template: str) -> Model:
        assert tokenizer.conversations is not None
        tokenizer.conversations.template = template
        return model

    yield by
    tokenizer.conversations = before
    before.template = CHATML


def chat(live: Live, model: str = "talker") -> Reply:
    return live.post("/v1/chat/completions", {"model": model, "messages": TALK, "max_tokens": 1})


# What is wrong with it, and what is said of it.
STUMBLES = {
    "arithmetic": ("one\ntwo\n{{ 1 / 0 }}", r"does not take .*: division by zero \(line 3 of the template\)"),
    "a long range": ("{{ range(10**6) | list }}", "does not take .*Range too big"),
    "what is not there": ("\n{{ nothing.at.all }}", r"does not take .*'nothing' is undefined \(line 2 of the template\)"),
    "a wrong type": ("{{ dict(1) }}", "does not take .*'int' object is not iterable"),
    "an order that there is not": ("{{ [1, 'a'] | sort }}", "does not take .*'<' not supported"),
    "a form that no time has": (r"{{ strftime_now('\ud800') }}", "does not take"),
    "other files": ("{% include '/etc/passwd' %}", "does not take .*no loader"),
    "an error without end": ("{{ raise_exception('no ' * 10**6) }}", "does not take .*: no no .{,400}$"),
    "what calls itself": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "does not take .*within itself without end"),
    "what holds itself": (
        "{% set n = namespace() %}{% for i in range(50000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
        "does not take .*: nested too deeply",
    ),
    "deep parentheses": (f"{{{{ {'(' * 9999}1{')' * 9999} }}}}", "can't be read: nested too deeply"),
    "deep signs": (f"{{{{ {'-' * 5000}1 }}}}", "can't be read: nested too deeply"),
    "deep conditions": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "can't be read: nested too deeply"),
    "deep loops": ("{% for i in [1] %}" * 60 + "{% endfor %}" * 60, "can't be read: too many statically nested blocks"),
    "what is no Jinja": ("one\n{% for %}", r"can't be read: Expected .* \(line 2 of the template\); import the model again"),
    "an unknown tag": ("{% do 1 %}", "can't be read: .*unknown tag 'do'"),
    "an unknown filter": ("{{ 1 | shout }}", "can't be read: No filter named 'shout'"),
    "much text": ("{% for i in range(99999) %}xxx{% endfor %}", r"writes more than 10\d,\d+ characters"),
}
HUNGRY = {
    "an indent": "{{ messages | tojson(indent=10**9) }}",
    "a text many times": "{{ 'x' * 10**10 }}",
    "a list many times": "{{ ([0] * 10**10) | length }}",
    "a width": "{{ 'x' | center(10**10) }}",
    "a format": "{{ '%10000000000d' % 1 }}",
    "doubling": "{% set n = namespace(x='aaaa') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "rows": "{{ range(9) | batch(10**9, 0) | list }}",
}
SLOW = {
    "loops": ENDLESS,
    "slices": "{% for i in messages | slice(10**9) %}{% endfor %}",
    "a large number": "{{ (7 ** (10 ** 8)) % 10 }}",
    "words": "{{ lipsum(n=10**9) }}",
}


@pytest.mark.parametrize("what", STUMBLES)
def test_what_it_stumbles_over_is_said_in_a_sentence(taught: Callable[[str], Model], what: str) -> None:
    template, said = STUMBLES[what]
    with pytest.raises(ChatTemplateError, match=f"^the chat template of .* {said}"):
        render(taught(template), TALK)
    assert render(taught(CHATML), TALK).startswith("<|im_start|>")


@LINUX
@pytest.mark.parametrize("what", HUNGRY)
def test_it_takes_no_more_memory_than_it_may(taught: Callable[[str], Model], what: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"the chat template of .* took more than 512 MB of memory; don't trust it"):
        render(taught(HUNGRY[what]), TALK)
    assert render(taught(CHATML), TALK).startswith("<|im_start|>")


@pytest.mark.parametrize("what", SLOW)
def test_it_takes_no_more_time_than_it_may(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)
    with pytest.raises(ChatTemplateError, match=r"^the chat template of it took more than (0.3|3) s; don't trust it$"):
        ChatTemplate(SLOW[what]).render("it", TALK)


def test_messages_hold_what_json_can_say(taught: Callable[[str], Model]) -> None:
    odd = [*TALK, {"role": "user", "content": "when?", "at": datetime(2026, 1, 1)}]
    with pytest.raises(ChatTemplateError, match=r"a message may hold nothing but what JSON can say .*datetime"):
        render(taught(CHATML), odd)
    with_calls = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]}]
    assert render(taught("{{ messages[0].tool_calls[0].function.arguments.x }}"), with_calls) == "1.5"


# What leads out of a sandbox that has a hole. {0} is a file that must not come into being.
CALL = "os.system('touch {0}')"
ATTACKS = [
    "{{{{ ''.__class__.__mro__[1].__subclasses__() }}}}",
    "{{{{ ''['__class__']['__mro__'] }}}}",
    "{{{{ ''|attr('__class__') }}}}",
    "{{{{ ''|attr('__cla' ~ 'ss__')|attr('__mro__') }}}}",
    "{{{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}}}",
    "{{{{ ['']|map(attribute='__class__')|list }}}}",
    "{{{{ ['']|map('attr', '__class__')|list }}}}",
    "{{{{ ['']|groupby('__class__') }}}}",
    "{{{{ ['']|sum(attribute='__class__') }}}}",
    "{{{{ ['']|selectattr('__class__')|list }}}}",
    "{{{{ '{{0.__class__.__mro__}}'.format('') }}}}",
    "{{{{ '{{x.__class__}}'.format_map(dict(x='')) }}}}",
    "{{{{ ('{{0.__class__}}'|string).format('') }}}}",
    "{{% set f = '{{0.__class__}}'.format %}}{{{{ f('') }}}}",
    "{{{{ ['{{0.__class__}}']|map('format', '')|list }}}}",
    "{{{{ self.__init__.__globals__ }}}}",
    "{{{{ self._TemplateReference__context }}}}",
    "{{{{ cycler.__init__.__globals__.os.system('touch {0}') }}}}",
    "{{{{ joiner.__init__.__globals__.os.system('touch {0}') }}}}",
    "{{{{ namespace.__init__.__globals__.os.system('touch {0}') }}}}",
    "{{{{ lipsum.__globals__.os.system('touch {0}') }}}}",
    "{{{{ lipsum['__globals__']['os']['system']('touch {0}') }}}}",
    "{{{{ range.__class__ }}}}",
    "{{{{ dict.__class__ }}}}",
    "{{{{ dict.__globals__ }}}}",
    "{{{{ dict.fromkeys }}}}{{{{ dict.mro() }}}}",
    "{{{{ raise_exception.__globals__ }}}}",
    "{{{{ strftime_now.__globals__['datetime'] }}}}",
    "{{{{ strftime_now.__closure__ }}}}",
    "{{{{ raise_exception.__code__.co_consts }}}}",
    "{{% set n = namespace(__class__=1) %}}{{{{ n }}}}",
    "{{% set n = namespace({{'__class__': 1}}) %}}{{{{ n }}}}",
    "{{% set n = namespace() %}}{{% set n.__class__ = 1 %}}",
    "{{% set n = namespace() %}}{{% set n._Namespace__attrs = 1 %}}",
    "{{{{ namespace().__dict__ }}}}",
    "{{{{ loop.__init__ }}}}{{% for i in [1] %}}{{{{ loop.__class__ }}}}{{% endfor %}}",
    "{{% for i in [1] %}}{{{{ loop._iterable }}}}{{{{ loop._recurse }}}}{{% endfor %}}",
    "{{% macro m() %}}{{% endmacro %}}{{{{ m.__init__ }}}}{{{{ m._func.__globals__ }}}}",
    "{{% macro m() %}}{{{{ caller.__globals__ }}}}{{% endmacro %}}{{% call m() %}}{{% endcall %}}",
    "{{{{ (messages|map('upper')).gi_frame.f_globals }}}}",
    "{{{{ (messages|map('upper')).gi_code }}}}",
    "{{{{ messages.append(1) }}}}",
    "{{{{ messages[0].update(role='system') }}}}",
    "{{{{ messages.__init__ }}}}",
    "{{{{ messages[0].pop('role') }}}}",
    "{{{{ config }}}}{{{{ environment }}}}{{{{ request.application.__globals__ }}}}",
    "{{{{ undefined.__class__ }}}}{{{{ undefined.__init__.__globals__ }}}}",
    "{{{{ 1.__class__ }}}}",
    "{{{{ (1).__class__.__base__ }}}}",
    "{{{{ true.__class__.__base__.__subclasses__() }}}}",
    "{{{{ ().__reduce_ex__(4) }}}}",
    "{{{{ ''.__getattribute__('__class__') }}}}",
    "{{{{ __import__('os').system('touch {0}') }}}}",
    "{{{{ open('{0}', 'w') }}}}",
    "{{{{ eval(\"__import__('os').system('touch {0}')\") }}}}",
    "{{% import 'os' as os %}}{{{{ os.system('touch {0}') }}}}",
    "{{% from 'os' import system %}}{{{{ system('touch {0}') }}}}",
    "{{% extends '{0}' %}}",
    "{{% include ['{0}', '/etc/passwd'] %}}",
    "{{{{ [].__class__.__base__.__subclasses__()|map(attribute='__init__')|list }}}}",
    "{{{{ messages|tojson(default=lipsum.__globals__) }}}}",
    "{{{{ messages|tojson(cls=dict) }}}}{{{{ messages|tojson(default=open) }}}}",
    "{{{{ '%s' % ''.__class__ }}}}{{{{ '%(x)s' % dict(x=''.__class__) }}}}",
    "{{{{ x.__class__ if (x := '') else '' }}}}",
    "{{{{ ''.__doc__ }}}}{{{{ lipsum.__doc__ }}}}{{{{ lipsum.__module__ }}}}",
    "{{{{ messages|xmlattr }}}}{{{{ {{'a\\nb onload=x': 1}}|xmlattr }}}}",
    "{{% autoescape false %}}{{{{ ''.__class__ }}}}{{% endautoescape %}}",
    "{{{{ (''|escape).__class__ }}}}{{{{ (''|safe).__html__.__globals__ }}}}",
    "{{{{ ('{{0.__class__}}'|safe).format('') }}}}",
    "{{{{ ''.join.__self__.__class__ }}}}",
    "{{{{ [''.format]|first|attr('__self__') }}}}",
]
REACHED = re.compile(r"<class|<module|<function|<frame|<code|mappingproxy|'__\w+__'|root:|passwd:|system\b")


@pytest.mark.parametrize("attack", ATTACKS)
def test_it_reaches_nothing(taught: Callable[[str], Model], attack: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    try:
        written = render(taught(attack.format(canary)), TALK)
    except RegardError:
        written = ""
    assert not REACHED.search(written)
    assert not canary.exists()
    assert render(taught(CHATML), TALK) == "<|im_start|>user\nWhere are you going?<|im_end|>\n<|im_start|>assistant\n"


# In a server


ASKED_OF_IT = {
    "arithmetic": STUMBLES["arithmetic"][0],
    "what calls itself": STUMBLES["what calls itself"][0],
    "deep parentheses": STUMBLES["deep parentheses"][0],
    "an indent": HUNGRY["an indent"],
    "much text": STUMBLES["much text"][0],
    "half of a character": r"{{ '\ud800' }}",
}


@LINUX
def test_a_server_says_what_is_wrong_and_lives(taught: Callable[[str], Model]) -> None:
    with Live({"talker": taught(CHATML)}) as live:
        for what, template in ASKED_OF_IT.items():
            taught(template)
            assert (what, chat(live).status) == (what, 400)
        taught(CHATML)
        assert chat(live).status == live.get("/health").status == 200


def test_a_template_without_end_holds_up_no_other(folder: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.4)
    slow = load(folder, device="cpu")
    assert isinstance(slow.tokenizer, ForeignTokenizer)
    slow.tokenizer.conversations = ChatTemplate(ENDLESS)
    over = threading.Event()
    found: list[Reply] = []

    def those() -> None:
        found.extend(together([lambda: chat(live, "slow")] * 20))
        over.set()

    with Live({"slow": slow, "talker": model}, Settings(Limits(seconds=3))) as live:
        threading.Thread(target=those).start()
        until(lambda: live.desk.conversations._waiting["slow"] == 20)
        long = {"texts": ["the cat " * 1100] * 3, "model": "talker", "max_length": 1}  # so long that its tokens are counted aside
        others = [chat(live), live.post("/api/generate", long)]
        assert not over.is_set()
        assert over.wait(60)
    assert [reply.status for reply in others] == [200, 400]
    assert "tokens long" in others[1].body.decode()  # it was counted
    told = {400: "took more than ", 503: "the conversation was not read within 3 s"}
    assert all(told[reply.status] in reply.json["error"]["message"] for reply in found)
    assert {reply.status for reply in found} == {400, 503}


@LINUX
def test_a_server_with_such_a_template_ends_when_told_and_leaves_nothing(tmp_path: Path) -> None:
    bundle = talker(tmp_path, ENDLESS)
    command = [sys.executable, "-m", "regard", "serve", "--port", "0", "--device", "cpu", "--timeout", "3", "--model", f"talker={bundle}"]
    with subprocess.Popen(heard(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        address = re.search(r"http://\S+:(\d+)", process.stdout.readline())
        assert address is not None
        asking = [threading.Thread(target=_asked, args=(int(address[1]),), daemon=True) for _ in range(12)]
        for each in asking:
            each.start()
        until(lambda: writers(process.pid), 60)
        workers = writers(process.pid)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    until(lambda: all(map(gone, workers)))


def _asked(port: int) -> None:
    with suppress(OSError, http.client.HTTPException), closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        body = json.dumps({"model": "talker", "messages": TALK})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        connection.getresponse().read()


def writers(pid: int) -> list[int]:
    """The processes that write conversations out for that of a server."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            of = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if of == pid and b"chat_template_work" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
