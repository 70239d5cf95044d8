"""The web service around a tiny random decoder on bytes, over loopback, as its clients use it."""

import asyncio
import json
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.tasks.test_language_modeling import tiny_model
from tests.tiny import draw, make_trainer
from transformer_lab.decoding.continuous import Engine

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")
for name in ("starlette", "prometheus_client"):
    pytest.importorskip(name)

from transformer_lab.serving import wire  # noqa: E402
from transformer_lab.serving.api import BODY, Service  # noqa: E402
from transformer_lab.serving.worker import Worker  # noqa: E402

CONTEXT, NEW = 96, 10
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def run():
    """A task and parameters that have opinions, so that texts differ."""
    config = tiny_model(
        tokenizer__kind="byte", model__max_length=CONTEXT, decode__max_new_tokens=NEW
    )
    task = make_trainer(config, 1).task
    params = draw(task.model, np.zeros((1, 2), np.int32))["params"]
    return SimpleNamespace(task=task, params=params)


@pytest.fixture(scope="module")
def service(run):
    """Served in a thread: two texts at once, three may wait."""
    decode, eos = run.task.decode_settings(), run.task.tokenizer.eos_id
    engine = Engine(run.task.model, run.params, decode, eos_id=eos, slots=2, waiting=8)
    service = Service("tiny", run.task, Worker(engine))
    yield from listening(service)
    service.worker.close()


def listening(service):
    config = uvicorn.Config(service.app, port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    service.port = server.servers[0].sockets[0].getsockname()[1]
    yield service
    server.should_exit = True
    thread.join()


@pytest.fixture
def client(service):
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client:
        yield client


def generated(run, prompt, samples=1, seed=0, **changes):
    """What `generate` continues a prompt with."""
    task, ids = run.task, prompt if isinstance(prompt, list) else run.task.prompt_ids(prompt)
    generator = task.generator()
    before = generator.config
    generator.config = replace(before, **changes)
    (found,) = generator(run.params, [ids], samples, seed)
    generator.config = before
    return [(task.text_of(one, ids), one) for one in found]


def ask(client, path="/v1/completions", **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(response):
    """The objects of a stream of events, which ends with [DONE]."""
    rows = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert rows[-1] == "[DONE]"
    return [json.loads(row) for row in rows[:-1]]


def until(condition):
    """Waits for what another thread does."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen within ten seconds")


def test_completions_are_those_of_generate_whole_and_streamed(run, client):
    prompts = ["né", "", "the dog 👩‍🚀 ran", "x" * 70]
    answer = ask(client, prompt=prompts, logprobs=0)
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        ((text, one),) = generated(run, prompt)
        assert choice["text"] == text
        assert choice["finish_reason"] == ("stop" if one.ended else "length")
        scores = choice["logprobs"]["token_logprobs"]
        np.testing.assert_allclose(scores, one.log_probs[: len(one.ids)], atol=1e-4)
        with client.stream(
            "POST", "/v1/completions",
            json={"prompt": prompt, "stream": True, "stream_options": {"include_usage": True}},
        ) as response:  # fmt: skip
            *parts, last = events(response)
        assert "".join(part["choices"][0]["text"] for part in parts) == text
        assert parts[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
        read = len(run.task.prompt_ids(prompt))
        assert last["usage"]["prompt_tokens"] == read
        assert last["usage"]["completion_tokens"] == len(one.log_probs)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]


def test_drawn_texts_are_those_of_generate_with_the_seed(run, client):
    how = {"temperature": 1.0, "top_k": 9, "top_p": 0.9}
    want = generated(run, "the", samples=3, seed=11, **how)
    answer = ask(client, prompt="the", n=3, seed=11, **how)
    assert [choice["text"] for choice in answer["choices"]] == [text for text, _ in want]
    assert len({text for text, _ in want}) == 3
    one, other = (ask(client, prompt="the", temperature=1.0)["choices"][0] for _ in range(2))
    assert one["text"] != other["text"]  # without a seed every request has its own


def test_a_stop_string_and_a_limit_end_a_text_and_an_echo_repeats_the_prompt(run, client):
    whole = generated(run, "né")[0][0]
    stop = whole[2:4]
    answer = ask(client, prompt="né", stop=["zzzz", stop], echo=True)["choices"][0]
    assert answer["text"] == "né" + whole.split(stop)[0]
    assert answer["finish_reason"] == "stop"
    answer = ask(client, prompt=run.task.prompt_ids("né"), max_tokens=3)
    assert answer["choices"][0]["text"] == generated(run, "né", max_new_tokens=3)[0][0]
    assert answer["usage"]["completion_tokens"] == 3


def test_a_conversation_without_a_template_is_lines_of_role_and_text(run, client):
    messages = [
        {"role": "system", "content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    ((want, _),) = generated(run, "system: hi\nuser: ab\nassistant:")
    (choice,) = ask(client, CHAT, messages=messages, logprobs=True)["choices"]
    assert choice["message"] == {"role": "assistant", "content": want}
    assert len(choice["logprobs"]["content"]) > 0
    with client.stream("POST", CHAT, json={"messages": messages, "stream": True}) as response:
        parts = events(response)
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == want


def test_a_conversation_follows_the_template_of_the_runs_tokenizer(run, monkeypatch):
    pytest.importorskip("jinja2")
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}>"
    monkeypatch.setattr(run.task.tokenizer, "chat_template", template)
    body = {"messages": [{"role": "developer", "content": "né"}, {"role": "user", "content": "a"}]}
    ids = wire.chat_ids(run.task, wire.messages(body))
    assert ids == run.task.tokenizer.encode("[system] né\n[user] a\n>")


def test_the_official_client_reads_answers_streams_and_errors(run, service):
    openai = pytest.importorskip("openai")
    url = f"http://127.0.0.1:{service.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        ((want, _),) = generated(run, "né")
        assert client.completions.create(model="tiny", prompt="né").choices[0].text == want
        messages = [{"role": "user", "content": "a"}]
        parts = client.chat.completions.create(model="tiny", messages=messages, stream=True)
        ((want, _),) = generated(run, "user: a\nassistant:")
        assert "".join(part.choices[0].delta.content for part in parts) == want
        with pytest.raises(openai.BadRequestError, match="temperature must be a number"):
            client.completions.create(model="tiny", prompt="né", temperature=-1)
        with pytest.raises(openai.NotFoundError, match="there is one model"):
            client.completions.create(model="gpt-9", prompt="né")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "the body is no JSON"),
        (b"\xff\xfe", 400, "the body is no JSON"),
        (b"[" * 100_000, 400, "the body is no JSON"),
        (b"[1]", 400, "no JSON object"),
        (b"{}", 400, "prompt must be a text"),
        (b'{"prompt": "\\ud800"}', 400, "prompt must be a text in Unicode"),
        ({"prompt": [5, 10**9]}, 400, "the ids of a prompt must be from 0 to"),
        ({"prompt": [[]]}, 400, "the ids of a prompt"),
        ({"prompt": ["a"] * 17}, 400, "more than 16 prompts"),
        ({"prompt": ["a"] * 9, "n": 2}, 400, "may ask for 16 texts, not 18"),
        ({"prompt": "a" * CONTEXT}, 400, f"exceed the context of {CONTEXT}"),
        ({"prompt": "a", "max_tokens": CONTEXT}, 400, f"exceed the context of {CONTEXT}"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens must be a whole number from 1"),
        ({"prompt": "a", "max_tokens": True}, 400, "max_tokens must be a whole number"),
        (b'{"prompt": "a", "temperature": NaN}', 400, "temperature must be a number from 0"),
        ({"prompt": "a", "stop": ""}, 400, "stop must be"),
        ({"prompt": "a", "stream": "yes"}, 400, "stream must be true or false"),
        ({"prompt": "a", "frequency_penalty": 0.5}, 400, "frequency_penalty is not supported"),
        ({"prompt": "a", "seed": 2**32}, 400, "seed must be a whole number"),
        ({"prompt": "a", "model": "other"}, 404, 'there is one model, "tiny"'),
        (b'{"prompt": "' + b"a" * BODY, 413, "the body exceeds"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_in_one_line_of_json(body, status, words, client):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(
        "/v1/completions", content=body, headers={"Content-Type": "application/json"}
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, status)
    assert words in error["message"] and "\n" not in error["message"]


def test_wrong_paths_methods_messages_and_types_of_content_are_refused_too(client):
    assert client.get("/v2").status_code == 404
    assert client.get("/v1/completions").status_code == 405
    for messages in ([], "a", [{"role": "tool", "content": "a"}], [{"role": "user"}], [5]):
        answer = client.post(CHAT, json={"messages": messages})
        assert answer.status_code == 400 and "message" in answer.json()["error"]["message"]
    assert client.post(CHAT, content="{}").status_code == 415
    answer = client.post("/v1/embeddings", json={"input": "a"})
    assert answer.status_code == 400 and "gives no vectors" in answer.json()["error"]["message"]


def test_a_client_that_goes_away_and_one_that_does_not_read_hold_up_nobody(run, service, client):
    """Both ask for long texts, one over a socket that it closes, one that it leaves alone."""
    engine = service.worker.engine
    body = json.dumps({"prompt": "a", "max_tokens": CONTEXT - 2, "stream": True, "n": 2,
                       "temperature": 1.0}).encode()  # fmt: skip
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n".encode()
    counter = service.meters.made._value
    before = counter.get()
    real, engine.step = engine.step, lambda: time.sleep(0.05) or real()
    try:
        with socket.create_connection(("127.0.0.1", service.port)) as gone:
            gone.sendall(head + body)
            assert gone.recv(100).startswith(b"HTTP/1.1 200")
            until(lambda: engine.counts[0] == 2)
        until(lambda: engine.counts == (0, 0))
        made = counter.get() - before
    finally:
        engine.step = real
    assert made < 2 * (CONTEXT - 2)
    with socket.create_connection(("127.0.0.1", service.port)) as slow:
        slow.sendall(head + body)
        ((want, _),) = generated(run, "né")
        assert ask(client, prompt="né")["choices"][0]["text"] == want


def test_a_full_queue_is_told_and_what_was_asked_is_metered(run, service, client):
    text = client.get("/metrics").text
    assert 'transformer_lab_requests_total{path="/v1/completions",status="413"}' in text
    assert "transformer_lab_first_token_seconds_count" in text
    compiled = float(service.worker.engine.compilations)
    assert compiled and f"transformer_lab_compilations {compiled}" in text
    assert client.get("/health").json() == {"status": "ok"}
    page = client.get("/")
    assert "<title>tiny</title>" in page.text and "http" not in page.text
    engine = service.worker.engine
    waiting, engine.waiting = engine.waiting, 0
    try:
        answer = client.post("/v1/completions", json={"prompt": "a"})
    finally:
        engine.waiting = waiting
    assert answer.status_code == 429 and "try again later" in answer.json()["error"]["message"]


def test_a_key_is_asked_for_and_vectors_are_given_where_the_run_has_them():
    """In process, without a port; the server has no model that writes."""
    embed = lambda texts: (np.array([[len(text), 0.5] for text in texts]), 7)  # noqa: E731
    app = Service("two", embed=embed, key="sesame").app

    async def talk():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            body = {"input": ["a", "né"]}
            for wrong in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "sesame"}):
                refused = await client.post("/v1/embeddings", json=body, headers=wrong)
                assert refused.status_code == 401
            client.headers["Authorization"] = "Bearer sesame"
            found = (await client.post("/v1/embeddings", json=body)).json()
            assert [row["embedding"] for row in found["data"]] == [[1, 0.5], [2, 0.5]]
            assert found["usage"]["total_tokens"] == 7
            coded = await client.post(
                "/v1/embeddings", json={"input": "a", "encoding_format": "base64"}
            )
            assert coded.json()["data"][0]["embedding"] == "AACAPwAAAD8="
            refused = await client.post("/v1/completions", json={"prompt": "a"})
            assert refused.status_code == 400 and "continues no texts" in refused.text

    asyncio.run(talk())


def test_an_engine_that_fails_tells_its_clients_and_the_health_check(run):
    decode, eos = run.task.decode_settings(), run.task.tokenizer.eos_id
    worker = Worker(Engine(run.task.model, run.params, decode, eos_id=eos, slots=1))
    service = Service("tiny", run.task, worker)

    def fail():
        raise MemoryError

    worker.engine._read_prompts = fail

    async def talk():
        transport = httpx.ASGITransport(app=service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            for _ in range(2):
                answer = await client.post("/v1/completions", json={"prompt": "a"})
                assert answer.status_code == 503
            assert (await client.get("/health")).status_code == 503

    asyncio.run(talk())
