"""Log-probabilities that are not the model's own, or not those of the text beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from openai import OpenAI
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, KvType, SessionOptions
from tests.support.demo import require_demo
from tests.support.openai_client import LIST, LISTED, MODEL, openai_client, user
from tests.support.server_process import ServerProcess

np = pytest.importorskip("numpy")

TOP = 5


@pytest.fixture(scope="module")
def client(live: ServerProcess) -> Iterator[OpenAI]:
    with openai_client(live) as opened:
        yield opened


class Model:
    """The engine in this process, without the server."""

    def __init__(self, stack: ExitStack) -> None:
        self.package = stack.enter_context(Package(require_demo()))
        engine = stack.enter_context(Engine(self.package, EngineOptions(threads=1)))
        self.session = stack.enter_context(Session(engine, SessionOptions(context=512, kv_type=KvType.BF16)))

    def log_softmax(self) -> np.ndarray:
        logits = np.asarray(self.session.logits(), dtype=np.float64)[: self.package.config.token_count]
        shifted = logits - logits.max()
        return shifted - np.log(np.exp(shifted).sum())

    def id_of(self, data: list[int]) -> int:
        token = self.package.token_find(bytes(data))
        assert token is not None
        return token


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with ExitStack() as stack:
        yield Model(stack)


def check(model: Model, prompt: list[int], content: list[ChatCompletionTokenLogprob], top: int) -> None:
    """Compares every entry with the engine, fed with the tokens that were picked."""
    model.session.reset()
    model.session.eval(prompt)
    for entry in content:
        assert entry.bytes is not None
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
        expected = model.log_softmax()
        token = model.id_of(entry.bytes)
        assert entry.logprob == pytest.approx(expected[token], abs=1e-4)
        likeliest = np.argsort(-expected, kind="stable")[:top]
        assert [each.logprob for each in entry.top_logprobs] == pytest.approx(list(expected[likeliest]), abs=1e-4)
        for each in entry.top_logprobs:
            assert each.bytes is not None
            assert each.logprob == pytest.approx(expected[model.id_of(each.bytes)], abs=1e-4)
        model.session.eval([token])


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_they_are_those_of_the_engine(client: OpenAI, live: ServerProcess, model: Model, temperature: float) -> None:
    """Before temperature and bias, which change what is picked only."""
    plain = {"enable_thinking": False}
    prompt = live.ask("POST", "/apply-template", {"messages": user(LIST), **plain}).json()["prompt"]
    bias = {str(model.package.tokenize(" cat")[0]): -100}
    reply = client.chat.completions.create(
        model=MODEL,
        messages=user(LIST),
        logprobs=True,
        top_logprobs=TOP,
        temperature=temperature,
        seed=11,
        max_tokens=40,
        logit_bias=bias,
        extra_body=plain,
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    check(model, model.package.tokenize(prompt), logprobs.content, TOP)


def test_they_join_to_the_content_and_leave_the_thinking_out(client: OpenAI, model: Model, live: ServerProcess) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=user(LIST), logprobs=True, top_logprobs=0)
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=user(LIST), logprobs=True, top_logprobs=0, stream=True)
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert b"".join(bytes(entry.bytes or ()) for entry in logprobs.content).decode() == LISTED
    assert all(entry.top_logprobs == [] for entry in logprobs.content)
    streamed = []
    for chunk in chunks:
        choice = chunk.choices[0]
        if choice.logprobs is not None:
            assert choice.logprobs.content is not None
            assert choice.delta.content == "".join(entry.token for entry in choice.logprobs.content)
            streamed += choice.logprobs.content
    assert streamed == logprobs.content
    prompt = live.ask("POST", "/apply-template", {"messages": user(LIST)}).json()["prompt"]
    check(model, model.package.tokenize(f"{prompt}I need 5 items.</think>"), logprobs.content, 0)


def test_without_asking_there_are_none(client: OpenAI) -> None:
    assert client.chat.completions.create(model=MODEL, messages=user(LIST)).choices[0].logprobs is None


def test_those_of_completions_have_the_old_form(client: OpenAI, live: ServerProcess, model: Model) -> None:
    prompt = live.ask("POST", "/apply-template", {"messages": user(LIST), "enable_thinking": False}).json()["prompt"]
    reply = client.completions.create(model=MODEL, prompt=prompt, logprobs=2)
    old = reply.choices[0].logprobs
    assert old is not None
    assert old.tokens is not None
    assert old.token_logprobs is not None
    assert old.top_logprobs is not None
    assert "".join(old.tokens) == LISTED
    assert old.text_offset == [sum(map(len, old.tokens[:index])) for index in range(len(old.tokens))]
    model.session.reset()
    model.session.eval(model.package.tokenize(prompt))
    for text, logprob, top in zip(old.tokens, old.token_logprobs, old.top_logprobs, strict=True):
        expected = model.log_softmax()
        token = model.id_of(list(text.encode()))
        assert logprob == pytest.approx(expected[token], abs=1e-4)
        assert len(top) == 2
        assert max(top.values()) == pytest.approx(expected.max(), abs=1e-4)
        model.session.eval([token])
