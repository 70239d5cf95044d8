"""The web service: OpenAI's completions, conversations and embeddings, and how the server does."""

import asyncio
import base64
import contextlib
import hmac
import html
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from transformer_lab.decoding.continuous import Busy
from transformer_lab.errors import LabError
from transformer_lab.serving import wire
from transformer_lab.serving.answers import Choice, Piece, completion, joined, message
from transformer_lab.serving.wire import Refused, Wish
from transformer_lab.serving.worker import Stopped, Worker
from transformer_lab.training.writers import log

BODY = 2**20  # bytes
STATUS = {LabError: 400, Busy: 429, Stopped: 503, ClientDisconnect: 499}  # HTTP's, of errors
PAGE = Path(__file__).with_name("page.html")


class Service:
    """The routes of one model. `task` and `worker` continue texts, `embed` gives the vectors of
    texts and how many tokens they have; what is None is refused. With a `key`, all but /health and
    the page ask for it."""

    def __init__(
        self,
        name: str,
        task: Any = None,
        worker: Worker | None = None,
        embed: Callable[[Sequence[str]], tuple[np.ndarray, int]] | None = None,
        key: str = "",
    ):
        self.name, self.task, self.worker, self.embed, self.key = name, task, worker, embed, key
        self.meters, self.embedding = Meters(worker), asyncio.Lock()
        self.app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/health", self._health),
                Route("/metrics", self._guarded(self._metrics)),
                Route("/v1/models", self._guarded(self._models)),
                Route("/v1/completions", self._guarded(self._complete), methods=["POST"]),
                Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
                Route("/v1/embeddings", self._guarded(self._embed), methods=["POST"]),
            ],
            exception_handlers={HTTPException: self._failed, Exception: self._failed},
        )

    # What every route shares.

    def _guarded(self, route):
        """The route with errors as JSON, refused without the key, and counted."""

        async def run(request: Request) -> Response:
            try:
                self._check(request)
                response = await route(request)
            except Exception as error:
                response = await self._failed(request, error)
            self.meters.requests.labels(request.url.path, response.status_code).inc()
            return response

        return run

    def _check(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if self.key and not hmac.compare_digest(given, f"Bearer {self.key}".encode()):
            raise Refused(
                "the API key is missing or wrong: send Authorization: Bearer KEY", None, 401
            )

    async def _failed(self, request: Request, error: Exception) -> Response:
        """An error as OpenAI's clients expect it."""
        status = next((n for kind, n in STATUS.items() if isinstance(error, kind)), 500)
        text = str(error) or "the server ends"
        if isinstance(error, HTTPException):
            status, text = error.status_code, str(error.detail)
        elif status == 500:
            log(f"{request.url.path} fails: {type(error).__name__}: {error}")
            text = "the server has failed"
        status = getattr(error, "status", status)
        return JSONResponse(failure(status, text, getattr(error, "param", None)), status)

    async def _body(self, request: Request, known: set[str]) -> dict[str, Any]:
        """The request's JSON; a body that is too large is not read to its end."""
        if "json" not in request.headers.get("content-type", ""):
            raise Refused("send JSON, with Content-Type: application/json", None, 415)
        data = b""
        async for chunk in request.stream():
            data += chunk
            if len(data) > BODY:
                raise Refused(f"the body exceeds {BODY:,} bytes", None, 413)
        body = wire.parsed(data, known)
        if body.get("model", self.name) != self.name:
            raise Refused(f'there is one model, "{self.name}"', "model", 404)
        return body

    # Texts.

    async def _complete(self, request: Request) -> Response:
        body = await self._body(request, wire.COMPLETION)
        self._writes()
        wish = self._wish(body, request)
        found = []
        for given in wire.prompts(body, self.task.model_config.vocab_size):
            text = given if isinstance(given, str) else ""
            ids = await run_in_threadpool(self.task.prompt_ids, given) if text == given else given
            found.append((text, ids))
        return await self._answer(request, wish, found, "text_completion", completion)

    async def _chat(self, request: Request) -> Response:
        body = await self._body(request, wire.CHAT)
        self._writes()
        wish = self._wish(body, request)
        conversation = wire.messages(body)
        ids = await run_in_threadpool(wire.chat_ids, self.task, conversation)
        return await self._answer(request, wish, [("", ids)], "chat.completion", message)

    def _writes(self) -> None:
        if self.worker is None:
            raise Refused(f"{self.name} continues no texts: ask it for /v1/embeddings")

    def _wish(self, body: dict[str, Any], request: Request) -> Wish:
        client = request.client.host if request.client else ""
        return wire.wish(body, self.task.sections["decode"], client)

    async def _answer(self, request, wish, prompts, kind, shape) -> Response:
        """The texts of all prompts, whole or as a stream."""
        n = wish.samples
        choices = [
            Choice(self.task, n * place + number, number, text, ids)
            for place, (text, ids) in enumerate(prompts)
            for number in range(n)
        ]
        if len(choices) > wire.SAMPLES:
            raise Refused(f"a request may ask for {wire.SAMPLES} texts, not {len(choices)}", "n")
        read = sum(len(ids) for _, ids in prompts)
        head = {"id": uuid.uuid4().hex, "created": int(time.time()), "model": self.name}
        pieces = merged(self._pieces(choice, wish) for choice in choices)
        # The first piece is awaited, so that a refusal has its own status.
        first = await until_gone(request, anext(pieces))
        self.meters.read.inc(read)
        if wish.stream:
            events = self._events(first, pieces, head, wish, read, kind, shape)
            return StreamingResponse(events, media_type="text/event-stream")
        found = [first, *await until_gone(request, listed(pieces))]
        each = [joined([p for p in found if p.index == choice.index]) for choice in choices]
        answer = {**head, "object": kind, "choices": [shape(p, wish.log_probs) for p in each]}
        return JSONResponse(answer | {"usage": usage(read, found)})

    async def _pieces(self, choice: Choice, wish: Wish) -> AsyncIterator[Piece]:
        """A choice's pieces, which are metered."""
        began, waiting = time.perf_counter(), True
        request = choice.request(wish, self.worker.engine.max_length)
        async with contextlib.aclosing(choice.pieces(self.worker, wish, request)) as pieces:
            async for piece in pieces:
                if waiting and piece.count:
                    self.meters.first.observe(time.perf_counter() - began)
                    waiting = False
                self.meters.made.inc(piece.count)
                yield piece

    async def _events(self, first, pieces, head, wish, read, kind, shape) -> AsyncIterator[str]:
        """Server-sent events: a JSON object for each piece, then [DONE]."""
        chat = kind == "chat.completion"
        head = {**head, "object": f"{kind}.chunk" if chat else kind}
        part = {"part": True} if chat else {}
        found = [first]
        event = lambda x: f"data: {json.dumps(x)}\n\n"  # noqa: E731
        try:
            yield event({**head, "choices": [shape(first, wish.log_probs, **part)]})
            async for piece in pieces:
                found.append(piece)
                yield event({**head, "choices": [shape(piece, wish.log_probs, **part)]})
            if wish.usage:
                yield event({**head, "choices": [], "usage": usage(read, found)})
            yield "data: [DONE]\n\n"
        except (Stopped, Busy):
            yield event(failure(503, "the server ends"))
        finally:
            await pieces.aclose()

    # The rest.

    async def _embed(self, request: Request) -> Response:
        body = await self._body(request, wire.EMBEDDING)
        if self.embed is None:
            raise Refused(f"{self.name} gives no vectors of texts")
        given = body.get("input")
        texts = given if isinstance(given, list) else [given]
        if not 1 <= len(texts) <= 2048:
            raise Refused("input must be a text, or up to 2048 of them", "input")
        texts = [wire.words(text, "input") for text in texts]
        async with self.embedding:
            vectors, size = await run_in_threadpool(self.embed, texts)
        rows = [
            {"object": "embedding", "index": i, "embedding": vector_of(v, body)}
            for i, v in enumerate(np.asarray(vectors, np.float32))
        ]
        counts = {"prompt_tokens": size, "total_tokens": size}
        return JSONResponse({"object": "list", "model": self.name, "data": rows, "usage": counts})

    async def _models(self, request: Request) -> Response:
        row = {"id": self.name, "object": "model", "created": 0, "owned_by": "transformer_lab"}
        return JSONResponse({"object": "list", "data": [row]})

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.meters.registry), media_type="text/plain")

    async def _health(self, request: Request) -> Response:
        healthy = self.worker is None or self.worker.healthy
        return JSONResponse({"status": "ok" if healthy else "failed"}, 200 if healthy else 503)

    async def _page(self, request: Request) -> Response:
        page = PAGE.read_text(encoding="utf-8").replace("{name}", html.escape(self.name))
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        return HTMLResponse(
            page, headers={"Content-Security-Policy": policy + "connect-src 'self'"}
        )


class Meters:
    """What /metrics shows."""

    def __init__(self, worker: Worker | None):
        self.registry = kept = CollectorRegistry()
        name = "transformer_lab"
        kinds = ["path", "status"]
        self.requests = Counter(f"{name}_requests", "Requests.", kinds, registry=kept)
        self.read = Counter(f"{name}_prompt_tokens", "Tokens of prompts.", registry=kept)
        self.made = Counter(f"{name}_new_tokens", "Tokens made.", registry=kept)
        self.first = Histogram(
            f"{name}_first_token_seconds", "Time to a text's first token.", registry=kept
        )
        if worker is not None:
            counts = {
                "running": lambda: worker.engine.counts[0],
                "waiting": lambda: worker.engine.counts[1],
                "shared_prefix_tokens": lambda: worker.engine.prefixes.hits,
                "compilations": lambda: worker.engine.compilations,
            }
            for key, value in counts.items():
                Gauge(f"{name}_{key}", f"Now {key}.", registry=kept).set_function(value)


def failure(status: int, text: str, param: str | None = None) -> dict[str, Any]:
    """The JSON of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "param": param, "code": status}}


def usage(read: int, pieces: Sequence[Piece]) -> dict[str, int]:
    """The numbers of tokens read and made."""
    made = sum(piece.count for piece in pieces)
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def vector_of(vector: np.ndarray, body: dict[str, Any]) -> Any:
    """A vector as a list of numbers, or as the base64 of its float32 bytes."""
    if body.get("encoding_format") == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


async def listed(pieces: AsyncIterator[Any]) -> list[Any]:
    """All that an iterator yields."""
    return [piece async for piece in pieces]


async def merged(streams: Any) -> AsyncIterator[Any]:
    """What several iterators yield, as it comes. If one fails or is given up, so are all."""
    queue: asyncio.Queue = asyncio.Queue()

    async def forward(stream):
        try:
            async with contextlib.aclosing(stream):
                async for item in stream:
                    queue.put_nowait((item, None))
            queue.put_nowait((None, None))
        except Exception as error:
            queue.put_nowait((None, error))

    tasks = [asyncio.create_task(forward(stream)) for stream in streams]
    left = len(tasks)
    try:
        while left:
            item, error = await queue.get()
            if error is not None:
                raise error
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_gone(request: Request, work: Any) -> Any:
    """The result of a coroutine, which is cancelled if the client goes. Raises: ClientDisconnect
    then."""
    task = asyncio.ensure_future(work)

    async def gone():
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.create_task(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
