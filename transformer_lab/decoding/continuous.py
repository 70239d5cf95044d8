"""Continuous batching: requests come and go while others are continued (Yu 2022, section 4.1)."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.decoding.batch import fill, row_keys
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.generate import Generated
from transformer_lab.decoding.prefixes import BLOCK, Prefixes
from transformer_lab.decoding.processors import refuse_unknown
from transformer_lab.decoding.slots import STEPS, Programs
from transformer_lab.errors import LabError

SIZES = tuple(2**n for n in range(BLOCK.bit_length()))  # tokens that one call reads
FEW = 4  # tokens of each text between two looks at the queue


class Busy(Exception):
    """The queue is full: the request may come again later."""


@dataclass(eq=False)
class Request:
    """A text to continue. `tell(ids, log_probs, over)` is called with each few new tokens, the end
    token included, by the thread that runs the engine; and with nothing and True if the engine
    fails. Requests of one `client` wait for each other, not for those of others."""

    prompt: Sequence[int]
    new_tokens: int
    temperature: float = 0.0  # 0: the likeliest token
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    number: int = 0  # tells the samples of one prompt apart
    client: str = ""
    tell: Callable[[list[int], list[float], bool], None] = lambda ids, log_probs, over: None
    cancelled: bool = field(default=False, init=False)


class Engine:
    """Continues the texts of many requests at once; each gets what `Generator` would give it.

    Draws depend on (seed, prompt, number) alone, as there; the other settings of `config` hold for
    all. `submit` and `cancel` may be called by any thread, `step` by one. Of each step's prompts
    about `BLOCK` tokens are read, so that a long prompt does not hold up the others; clients take
    turns. The model is a language model as in `models.base`.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Any,
        config: DecodeConfig,
        *,
        eos_id: int,
        slots: int = 8,
        waiting: int = 256,
        prefix_bytes: int = 2**28,
    ):
        if config.beam_size > 1:
            raise LabError("decode.beam_size > 1 searches; a server draws: set it to 1")
        refuse_unknown(config, eos_id, model.config.vocab_size)
        self.model, self.params, self.waiting = model, params, waiting
        self.max_length = model.config.max_length
        self.programs = Programs(model, config, eos_id, slots)
        shapes = self.programs.row_shapes(params), self.programs.row_shapes(params, longer=8)
        self.prefixes = Prefixes(*shapes, 1, 0 if model.reads_prefix else prefix_bytes)
        self._empty = self.programs.empty(params)
        self._slots = self.programs.start(self._empty)
        self._running: list[Request | None] = [None] * slots
        self._reading: tuple[Request, Any, int] | None = None  # its row, and the tokens in it
        self._queues: OrderedDict[str, deque[Request]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def compilations(self) -> int:
        """Programs traced so far: constant once `warm_up` has run."""
        prefixes = self.prefixes.cut._cache_size() + self.prefixes.paste._cache_size()
        return self.programs.compilations + prefixes

    @property
    def counts(self) -> tuple[int, int]:
        """How many requests are being continued, and how many wait."""
        running = sum(request is not None for request in self._running)
        return running, sum(map(len, self._queues.values())) + (self._reading is not None)

    def submit(self, request: Request) -> None:
        """Queues a request. Raises: LabError if it does not fit the context, Busy if too many wait.
        """
        size, room = len(request.prompt), self.max_length - len(request.prompt)
        if not size or not 1 <= request.new_tokens <= room:
            raise LabError(
                f"a prompt of {size} tokens and {request.new_tokens} new ones do not fit the "
                f"context of {self.max_length}: shorten one of them"
            )
        with self._lock:
            if sum(map(len, self._queues.values())) >= self.waiting:
                raise Busy(f"{self.waiting} requests are waiting: try again later")
            self._queues.setdefault(request.client, deque()).append(request)

    def cancel(self, request: Request) -> None:
        """Forgets a request; a running one makes no more tokens after the present step."""
        request.cancelled = True

    def warm_up(self) -> None:
        """Compiles everything, by requests of its own."""
        most = min(2 * BLOCK, self.max_length - 1)
        prompts = [[0] * most, [0] * most] if most > 1 else [[0]]
        if self.model.reads_prefix:
            prompts = [[0] * min(n, self.max_length - 1) for n in whole_sizes(self.max_length)]
        else:
            prompts += [[0] * (n + 1) for n in SIZES if n + 1 < self.max_length]
        self([Request(prompt, 1) for prompt in prompts])
        self.prefixes.blocks.clear()
        self.prefixes.hits = 0

    def __call__(self, requests: Sequence[Request]) -> list[Generated]:
        """The continuations of all requests, in order."""
        found = []
        for request in requests:
            made = Generated([], [], False)
            found.append(made)

            def tell(ids, log_probs, over, made=made):
                made.ids.extend(ids)
                made.log_probs.extend(log_probs)

            request.tell = tell
            self.submit(request)
        while self.step():
            pass
        eos = self.programs.eos_id
        return [
            Generated(one.ids[:-1], one.log_probs, True) if one.ids[-1:] == [eos] else one
            for one in found
        ]

    def fail(self) -> None:
        """Tells all requests that no more will come."""
        with self._lock:
            left = [request for queue in self._queues.values() for request in queue]
            self._queues.clear()
        left += [request for request in self._running if request]
        left += [self._reading[0]] if self._reading else []
        self._running, self._reading = [None] * len(self._running), None
        for request in left:
            request.tell([], [], True)

    def step(self) -> bool:
        """Reads some of a prompt and continues all texts a little; False if nothing was to do."""
        dropped = np.array([r is None or r.cancelled for r in self._running])
        self._running = [
            None if d else r for d, r in zip(dropped, self._running, strict=True)
        ]  # fmt: skip
        arrived = self._read_prompts(dropped)
        if not any(self._running):
            return arrived
        more = None in self._running and any(self.counts[1:])
        steps = jnp.int32(1 if more else FEW)
        step = self.programs.step
        self._slots, made = step(self.params, self._slots, jnp.asarray(dropped), steps)
        made = jax.device_get(made)
        for slot, request in enumerate(self._running):
            if request is not None:
                count, over = made.counts[slot], bool(made.done[slot])
                self._running[slot] = None if over else request
                ids, log_probs = made.tokens[slot, :count], made.log_probs[slot, :count]
                request.tell(ids.tolist(), log_probs.tolist(), over)
        return True

    # Prompts.

    def _read_prompts(self, dropped: np.ndarray) -> bool:
        """Reads prompts while slots are free and few tokens are read; True if there was one."""
        budget, any_read = BLOCK, False
        while budget > 0 and None in self._running:
            if self._reading is None and (request := self._next()) is not None:
                self._reading = self._begin(request)
            if self._reading is None:
                return any_read
            any_read = True
            request, row, count = self._reading
            left = len(request.prompt) - 1 - count
            if request.cancelled:
                self._reading = None
            elif left > 0:
                size = max(n for n in SIZES if n <= left)
                part = np.asarray([request.prompt[count : count + size]], np.int32)
                row, count, budget = self.programs.read(self.params, row, part), count + size, (
                    budget - size
                )
                if size == BLOCK:
                    self.prefixes.keep(request.prompt, row, count // BLOCK - 1)
                self._reading = request, row, count
            else:
                budget -= 1
                slot = self._running.index(None)
                self._admit(slot, request, row)
                self._reading, dropped[slot] = None, False
        return any_read

    def _next(self) -> Request | None:
        """The first request of the client whose turn it is."""
        with self._lock:
            while self._queues:
                client, queue = next(iter(self._queues.items()))
                request = queue.popleft()
                self._queues.move_to_end(client)
                if not queue:
                    del self._queues[client]
                if not request.cancelled:
                    return request
        return None

    def _begin(self, request: Request) -> tuple[Request, Any, int]:
        """A request with a row, and how many of its tokens the row holds."""
        prompt = request.prompt
        if self.model.reads_prefix:
            size = next(n for n in whole_sizes(self.max_length) if n >= len(prompt))
            tokens, real = fill([prompt], 1, size, left=True)
            row = self.programs.read_whole(self.params, tokens, real.astype(np.int32))
            return request, row, len(prompt) - 1
        found = self.prefixes.find(prompt)
        row = self.prefixes.fill(self.programs.copy(self._empty), found)
        return request, row, len(found) * BLOCK

    def _admit(self, slot: int, request: Request, row: Any) -> None:
        said = np.full(self._slots.said.shape[1], -1, np.int32)
        said[: len(request.prompt)] = request.prompt
        key = row_keys([request.prompt], [request.number], request.seed, 1)[0]
        controls = (
            np.float32(request.temperature),
            np.int32(min(request.top_k, 2**31 - 1)),
            np.float32(request.top_p),
        )
        numbers = np.int32(len(request.prompt)), np.int32(request.new_tokens)
        how = np.int32(slot), row, said, *numbers, key, controls
        self._slots = self.programs.admit(self._slots, *how)
        self._running[slot] = request


def whole_sizes(most: int) -> list[int]:
    """The padded lengths of prompts that are read in one call: 8, 16, ... and the largest."""
    return [*(2**n for n in range(3, 31) if 2**n < most), most]
