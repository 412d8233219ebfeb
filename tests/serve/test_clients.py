"""The published clients of LibreTranslate and of OpenAI, unchanged, against a live server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from html import escape
from itertools import count
from pathlib import Path
from urllib.error import HTTPError

import pytest
import torch

from regard.door import Model, load
from regard.door.chat import chat_ids
from regard.door.writing import prompt_ids
from regard.serve.settings import Limits, Settings
from tests.door.talker import talker
from tests.serve.live import Held, Live, Start, until

libretranslatepy = pytest.importorskip("libretranslatepy")
openai = pytest.importorskip("openai")


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.address}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture
def say(models: dict[str, Model]) -> Callable[[str, str], str]:
    """What the model itself says."""
    return lambda text, to="back": models["translator"].translate(text, to).text


# LibreTranslate


def test_libretranslate_translates_and_lists_languages(live: Live, say: Callable[..., str]) -> None:
    api = libretranslatepy.LibreTranslateAPI(live.address)
    assert api.translate("1 2 3", "en", "back") == say("1 2 3")
    assert api.translate("4 5 6", "auto", "same") == say("4 5 6", "same")
    assert api.languages() == [
        {"code": "en", "name": "English", "targets": ["back", "same"]},
        {"code": "back", "name": "back", "targets": []},
        {"code": "same", "name": "same", "targets": []},
    ]


def test_libretranslate_with_a_key(start: Start, say: Callable[..., str]) -> None:
    live = start(Settings(api_key="open sesame"))
    api = libretranslatepy.LibreTranslateAPI(live.address, api_key="open sesame")
    assert api.translate("1 2 3", "en", "back") == say("1 2 3")
    assert len(api.languages()) == 3
    for key in (None, "wrong"):
        stranger = libretranslatepy.LibreTranslateAPI(live.address, api_key=key)
        for call in (lambda api: api.translate("1", "en", "back"), lambda api: api.languages(), lambda api: api.detect("1")):
            with pytest.raises(HTTPError, match="401") as refused:
                call(stranger)
            refused.value.close()


def test_libretranslate_detects_only_where_it_can(live: Live, models: dict[str, Model], start: Start) -> None:
    reply = live.ask("POST", "/detect", "q=hello", {"content-type": "application/x-www-form-urlencoded"})
    assert reply.status == 400
    assert "no model here tells languages apart" in reply.json["error"]
    critic = models["critic"]
    labelled = critic.config.model_copy(update={"labels": ("en", "it")})
    try:
        critic.network.config, kept = labelled, critic.network.config  # type: ignore[assignment]
        api = libretranslatepy.LibreTranslateAPI(start(of={"critic": critic}).address)
        found = api.detect("a lovely story")
    finally:
        critic.network.config = kept
    assert {each["language"] for each in found} == {"en", "it"}
    assert found[0]["confidence"] >= found[1]["confidence"]
    assert sum(each["confidence"] for each in found) == pytest.approx(100, abs=0.2)


def test_libretranslate_takes_lists_lines_html_and_alternatives(live: Live, say: Callable[..., str]) -> None:
    asked = {"q": ["1 2 3", "4 5"], "source": "en", "target": "back", "format": "text", "alternatives": 2, "api_key": ""}
    given = live.post("/translate", asked).json
    assert given["translatedText"] == [say("1 2 3"), say("4 5")]
    assert all(1 <= len(each) <= 2 for each in given["alternatives"])
    assert say("1 2 3") not in given["alternatives"][0]
    lines = live.post("/translate", {"q": "1 2\n\n  3 4  \r\n", "target": "back"}).json
    assert lines["translatedText"] == f"{say('1 2')}\n\n  {say('3 4')}  \r\n"
    page = '<p class="a>b">1 2 3</p><!-- 9 --><script>var x = "4 5";</script>\n<br/>&#49; 2 &lt;b&gt;'
    given = live.post("/translate", {"q": page, "target": "same", "format": "html"}).json["translatedText"]
    first, last = say("1 2 3", "same"), say("1 2 <b>", "same")
    assert given == f'<p class="a>b">{first}</p><!-- 9 --><script>var x = "4 5";</script>\n<br/>{escape(last, quote=False)}'
    assert live.post("/translate", {"q": "", "target": "back"}).json == {"translatedText": ""}
    assert live.post("/translate", {"q": [], "target": "back"}).json == {"translatedText": []}


def test_libretranslate_takes_forms(live: Live, say: Callable[..., str]) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert live.ask("POST", "/translate", "q=1+2&q=3+4&target=back", form).json == {"translatedText": [say("1 2"), say("3 4")]}
    parts = "".join(
        f'--x\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in (("q", "1 2"), ("target", "back"))
    )
    multipart = {"content-type": "multipart/form-data; boundary=x"}
    assert live.ask("POST", "/translate", parts + "--x--\r\n", multipart).json == {"translatedText": say("1 2")}
    file = '--x\r\ncontent-disposition: form-data; name="q"; filename="a.txt"\r\n\r\n1 2\r\n--x--\r\n'
    assert live.ask("POST", "/translate", file, multipart).status == 400
    assert live.ask("POST", "/translate?q=1+2&target=back").json == {"translatedText": say("1 2")}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"q": "1", "target": "bakc"}, "did you mean 'back'?"),
        ({"q": "1", "source": "xx", "target": "back"}, "not supported as a source"),
        ({"q": "1"}, "target: Field required"),
        ({"q": 1, "target": "back"}, "q.str: Input should be a valid string"),
        ({"q": "1", "target": "back", "format": "pdf"}, "format: "),
        ([], "should be a JSON object"),
    ],
)
def test_libretranslate_says_what_is_wrong(live: Live, asked: object, message: str) -> None:
    reply = live.post("/translate", asked)
    assert reply.status == 400
    assert message in reply.json["error"]


# OpenAI


def test_openai_lists_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names == ["translator", "translator:back", "translator:same", "writer", "critic", "guesser"]
    assert client.models.retrieve("writer").id == "writer"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'"):
        client.models.retrieve("gpt-4")


def test_openai_completions(client: openai.OpenAI, models: dict[str, Model]) -> None:
    done = client.completions.create(model="writer", prompt="the cat", max_tokens=6, temperature=0)
    wanted = models["writer"].generate("the cat", max_length=6, temperature=0)
    assert done.choices[0].text == wanted.text
    assert done.choices[0].finish_reason == ("stop" if wanted.ended else "length")
    assert done.usage is not None
    assert done.usage.completion_tokens == len(wanted.log_probabilities)
    many = client.completions.create(model="writer", prompt=["the", "a"], max_tokens=5, n=2, seed=4, temperature=0.7, top_p=0.9, logprobs=0)
    found = models["writer"].generate(["the", "a"], max_length=5, samples=2, seed=4, temperature=0.7, top_p=0.9)
    assert [choice.text for choice in many.choices] == [each.text for own in found for each in (own, *own.alternatives)]
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    logs = many.choices[0].logprobs
    assert logs is not None
    assert logs.token_logprobs == pytest.approx(found[0].log_probabilities[: len(found[0].tokens)], abs=1e-4)
    echoed = client.completions.create(model="writer", prompt="the cat", max_tokens=4, temperature=0, echo=True)
    assert echoed.choices[0].text.startswith("the cat")


def test_openai_logprobs_are_those_of_the_text_that_is_given(client: openai.OpenAI) -> None:
    asked = {"model": "writer", "prompt": "the cat", "max_tokens": 8, "temperature": 0, "logprobs": 0, "echo": True}
    whole = client.completions.create(**asked).choices[0]
    assert whole.logprobs is not None
    tokens = whole.logprobs.tokens
    assert tokens is not None
    assert len(tokens) > 3
    cut = client.completions.create(**asked, stop=tokens[2]).choices[0]
    assert cut.logprobs is not None
    first = next(place for place, token in enumerate(tokens) if tokens[2] in token)  # the same may stand before it
    assert cut.logprobs.tokens == tokens[:first]
    assert cut.text == "the cat" + "".join(tokens[:first])
    assert cut.logprobs.text_offset == whole.logprobs.text_offset[:first]
    assert whole.logprobs.text_offset[0] == len("the cat")


def test_openai_an_empty_prompt_may_have_fewer_choices(client: openai.OpenAI) -> None:
    found = client.completions.create(model="translator:back", prompt=["", "1 2 3"], n=2, temperature=1, seed=1).choices
    assert [choice.index for choice in found] == list(range(len(found)))
    assert found[0].text == ""
    assert all(choice.text for choice in found[1:])


def test_openai_completions_stop_where_they_are_told(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="writer", prompt="the cat", max_tokens=8, temperature=0).choices[0].text
    end = whole[4:6]
    done = client.completions.create(model="writer", prompt="the cat", max_tokens=8, temperature=0, stop=[end, "never"])
    assert done.choices[0].text == whole[: whole.index(end)]
    assert done.choices[0].finish_reason == "stop"
    streamed = client.completions.create(model="writer", prompt="the cat", max_tokens=8, temperature=0, stop=end, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole[: whole.index(end)]


def test_openai_completions_streamed_are_the_same(client: openai.OpenAI) -> None:
    asked = {"model": "writer", "prompt": "héllo wörld", "max_tokens": 12, "seed": 3, "temperature": 1.0}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert len(chunks) > 4
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    several = list(client.completions.create(**asked, n=2, stream=True))
    assert {choice.index for chunk in several for choice in chunk.choices} == {0, 1}


def test_openai_draws_anew_where_no_seed_is_given(client: openai.OpenAI) -> None:
    texts = {client.completions.create(model="writer", prompt="the", max_tokens=10, temperature=3).choices[0].text for _ in range(4)}
    assert len(texts) > 1
    seeded = {
        client.completions.create(model="writer", prompt="the", max_tokens=10, temperature=3, seed=-5).choices[0].text for _ in range(3)
    }
    assert len(seeded) == 1


def test_openai_chats(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": [{"type": "text", "text": "the cat"}]}]
    done = client.chat.completions.create(model="writer", messages=messages, max_tokens=8, temperature=0, logprobs=True)
    assert done.choices[0].message.role == "assistant"
    assert done.choices[0].logprobs is not None
    assert done.choices[0].finish_reason in ("stop", "length")
    pieces = list(client.chat.completions.create(model="writer", messages=messages, max_completion_tokens=8, temperature=0, stream=True))
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces).strip() == (done.choices[0].message.content or "").strip()
    assert pieces[-1].choices[0].finish_reason == done.choices[0].finish_reason


def test_openai_chats_as_a_model_was_taught(start: Start, tmp_path: Path) -> None:
    model = load(talker(tmp_path), device="cpu")
    model.name = "talker"
    live = start(of={"talker": model})
    messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Where<|im_end|> are you going?"}]
    wanted = model.chat(messages, max_length=12, temperature=0)
    with openai.OpenAI(base_url=f"{live.address}/v1", api_key="any", max_retries=0) as client:
        done = client.chat.completions.create(model="talker", messages=messages, max_tokens=12, temperature=0)
        assert done.choices[0].message.content == wanted.text
        assert done.usage is not None
        assert done.usage.prompt_tokens == len(chat_ids(model, messages))
        pieces = client.chat.completions.create(model="talker", messages=messages, max_tokens=12, temperature=0, stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == wanted.text
        with pytest.raises(openai.BadRequestError, match="tokens long, but talker has a context of 256"):
            client.chat.completions.create(model="talker", messages=[{"role": "user", "content": "going " * 400}])


def test_openai_clients_can_translate(client: openai.OpenAI, say: Callable[..., str]) -> None:
    assert client.completions.create(model="translator:back", prompt=["1 2 3", "4 5"]).choices[1].text == say("4 5")
    messages = [{"role": "user", "content": "1 2 3"}]
    assert client.chat.completions.create(model="translator:back", messages=messages).choices[0].message.content == say("1 2 3")
    pieces = client.chat.completions.create(model="translator:same", messages=messages, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == say("1 2 3", "same")


def test_openai_embeddings(client: openai.OpenAI, models: dict[str, Model]) -> None:
    films = ["a lovely story", "this film was awful"]
    wanted = models["critic"].embed(films, normalise=True)
    packed = client.embeddings.create(model="critic", input=films)  # in base64, as the client asks unless told otherwise
    plain = client.embeddings.create(model="critic", input=films, encoding_format="float")
    for found in (packed, plain):
        torch.testing.assert_close(torch.tensor([each.embedding for each in found.data]), wanted, atol=1e-5, rtol=0)
    assert plain.usage.prompt_tokens > 0
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="critic", input="a", dimensions=7)


def test_openai_errors_are_of_its_kinds(client: openai.OpenAI, start: Start) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'"):
        client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.BadRequestError, match="writes several languages"):
        client.completions.create(model="translator", prompt="a")
    with pytest.raises(openai.BadRequestError, match="frequency_penalty is not supported"):
        client.completions.create(model="writer", prompt="a", frequency_penalty=1)
    with pytest.raises(openai.BadRequestError, match="but not generate"):
        client.completions.create(model="critic", prompt="a")
    with pytest.raises(openai.BadRequestError, match="token ids"):
        client.completions.create(model="writer", prompt=[1, 2, 3])
    with pytest.raises(openai.BadRequestError, match="the prompt is"):
        client.completions.create(model="writer", prompt="the cat " * 40, stream=True)
    locked = start(Settings(api_key="secret"))
    stranger = openai.OpenAI(base_url=f"{locked.address}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with openai.OpenAI(base_url=f"{locked.address}/v1", api_key="secret", max_retries=0) as friend:
        assert friend.completions.create(model="writer", prompt="a", max_tokens=2).choices


def test_openai_is_told_to_come_again(start: Start) -> None:
    live = start(Settings(limits=Limits(waiting=1)))
    held = Held(live)
    with openai.OpenAI(base_url=f"{live.address}/v1", api_key="any", max_retries=0) as client:
        quiet = [threading.Thread(target=live.post, args=("/api/classify", {"texts": "lovely"})) for _ in range(2)]
        quiet[0].start()
        assert held.begun.wait(20)
        quiet[1].start()
        until(lambda: live.desk.metrics.registry.get_sample_value("regard_waiting_texts") == 1)
        with pytest.raises(openai.RateLimitError) as full:
            client.completions.create(model="writer", prompt="a")
        assert int(full.value.response.headers["retry-after"]) >= 1
        assert json.loads(full.value.response.text)["error"]["type"] == "rate_limit_error"
        held.let_go()
        for thread in quiet:
            thread.join(20)


@pytest.mark.parametrize("most", [1, 4, 40])
@pytest.mark.parametrize("prompt", ["the cat", "", "héllo wörld 🦆", "the cat sat on the mat"])
def test_openai_counts_tokens_alike_streamed_and_whole(client: openai.OpenAI, models: dict[str, Model], prompt: str, most: int) -> None:
    messages = [{"role": "user", "content": prompt}]
    chat = {"model": "writer", "messages": messages, "max_tokens": min(most, 16), "temperature": 0}
    plain = {"model": "writer", "prompt": prompt, "max_tokens": most, "temperature": 0}
    for create, asked in ((client.completions.create, plain), (client.chat.completions.create, chat)):
        whole = create(**asked)  # type: ignore[operator]
        *_, last = create(**asked, stream=True, stream_options={"include_usage": True})  # type: ignore[operator]
        assert last.usage == whole.usage
    read = client.completions.create(**plain).usage  # type: ignore[call-overload]
    assert read.prompt_tokens == len(prompt_ids(models["writer"], [prompt])[0])
    assert read.total_tokens == read.prompt_tokens + read.completion_tokens


def test_openai_chunks_of_a_stream_are_created_at_one_time(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(1_000_000_000)
    monkeypatch.setattr("regard.serve.openai.time.time", lambda: float(next(clock)))
    asked = {"model": "writer", "prompt": "the cat", "max_tokens": 8, "stream": True}
    for wishes in ({}, {"n": 2}):
        chunks = list(client.completions.create(**asked, **wishes))  # type: ignore[call-overload]
        assert len(chunks) > 3
        assert {chunk.created for chunk in chunks} == {chunks[0].created}


def test_openai_long_texts_need_no_seed(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """Every part of a text has a number of its own, by which chance goes; times what keeps samples apart, it is more than 64 bits hold."""
    asked = {"model": "translator:back", "messages": [{"role": "user", "content": "1 2 3 4 5 6 7 8 9 0. " * 40}]}
    reply = live.post("/v1/chat/completions", asked)
    assert reply.status == 200
    assert (
        reply.json["choices"][0]["message"]["content"]
        == live.post("/v1/chat/completions", asked | {"seed": 1}).json["choices"][0]["message"]["content"]
    )
    assert not caplog.records
