"""Continuous batching: requests come and go while others are continued (Yu 2022, section 4.1)."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from transformer_lab.decoding.batch import fill, marks_of
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.generate import Generated
from transformer_lab.decoding.prefixes import BLOCK, Prefixes
from transformer_lab.decoding.processors import refuse_unknown
from transformer_lab.decoding.slots import STEPS, Programs
from transformer_lab.errors import LabError

SIZES = (1, 4, 16, BLOCK)  # tokens that one call reads of a long prompt
WHOLE = (16, BLOCK)  # padded lengths of short prompts, each read in one call
LENGTHS = tuple(2**n for n in range(8, 31))  # tokens that the slots have room for, or the most
SECONDS = 0.05  # about the time between two looks at the queue


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
    made: int = field(default=0, init=False)


class Engine:
    """Continues the texts of many requests at once; each gets what `Generator` would give it.

    Draws depend on (seed, prompt, number) alone, as there; the other settings of `config` hold for
    all. `submit` and `cancel` may be called by any thread, `step` by one. Of each step's prompts
    about `BLOCK` tokens are read, so that a long prompt does not hold up the others; clients take
    turns. The model is a language model as in `models.base`. A text has at most `context` tokens,
    by default as many as the model takes; the slots have room for the longest of the moment, in a
    few sizes.
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
        context: int = 0,
    ):
        if config.beam_size > 1:
            raise LabError("decode.beam_size > 1 searches; a server draws: set it to 1")
        refuse_unknown(config, eos_id, model.config.vocab_size)
        self.model, self.params, self.waiting = model, params, waiting
        self.max_length = min(context or model.config.max_length, model.config.max_length)
        whole = [*(2**n for n in range(3, 31) if 2**n < self.max_length), self.max_length]
        self.whole = whole if model.reads_prefix else list(WHOLE)
        self.programs = Programs(model, config, eos_id, slots, self.max_length, BLOCK)
        axes, self._empty = self.programs.find_axes(params), self.programs.empty(params)
        self.prefixes = Prefixes(self._empty, axes, 1, 0 if model.reads_prefix else prefix_bytes)
        self._slots = self.programs.start(self._empty)
        most = self.programs.length
        grows = max(jax.tree.leaves(axes)) >= 0 and not model.reads_prefix
        self.lengths = [n for n in LENGTHS if n < most and grows] + [most]
        self._length, self._least = most, 0
        self._running: list[Request | None] = [None] * slots
        self._reading: tuple[Request, Any, int] | None = None  # its row, and the tokens in it
        self._queues: OrderedDict[str, deque[Request]] = OrderedDict()
        self._lock = threading.Lock()
        self._pace = SECONDS  # seconds of the last step of all slots

    @property
    def compilations(self) -> int:
        """Programs traced so far: constant once `warm_up` has run."""
        prefixes = self.prefixes.cut._cache_size() + self.prefixes.paste._cache_size()
        return self.programs.compilations + prefixes

    @property
    def counts(self) -> tuple[int, int]:
        """How many requests are being continued, and how many wait."""
        running = sum(request is not None for request in self._running)
        with self._lock:
            waiting = sum(map(len, self._queues.values()))
        return running, waiting + (self._reading is not None)

    def submit(self, request: Request) -> None:
        """Queues a request. Raises: LabError if it exceeds the context, Busy if too many wait."""
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
        with self._lock:
            request.cancelled = True
            if request in self._queues.get(request.client, ()):
                self._take(request.client, request)

    def warm_up(self) -> None:
        """Compiles everything, by requests of its own."""
        most, long = self.max_length - 1, BLOCK + sum(SIZES) + 1
        sizes = {1, *self.whole, long}
        prompts = [[0] * min(n, most) for n in sorted(sizes)]
        self([Request(prompt, 1) for prompt in [*prompts, *prompts[-1:]]])
        for least in [*self.lengths, 0]:  # up and down again
            self._least = least
            self([Request([0], 1)])
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
        more = None in self._running and self.counts[1]
        self._fit()
        steps = 1 if more else int(np.clip(SECONDS / self._pace, 1, STEPS))
        began = time.perf_counter()
        how = self._slots, dropped, np.int32(steps)
        self._slots, made = self.programs.step(self.params, *how)
        made = jax.device_get(made)
        self._pace = (time.perf_counter() - began) / steps
        for slot, request in enumerate(self._running):
            if request is not None:
                count, over = made.counts[slot], bool(made.done[slot])
                self._running[slot] = None if over else request
                ids, log_probs = made.tokens[slot, :count], made.log_probs[slot, :count]
                request.made += int(count)
                request.tell(ids.tolist(), log_probs.tolist(), over)
        return True

    # Prompts.

    def _read_prompts(self, dropped: np.ndarray) -> bool:
        """Reads prompts into free slots, about `BLOCK` tokens; False if none waits for one."""
        spent, busy = 0, False
        while spent < BLOCK and None in self._running and self._begin():
            busy, (request, row, count) = True, self._reading
            if request.cancelled:
                self._reading = None
            elif row is None or count < len(request.prompt) - 1:
                self._reading = self._read(request, row, count)
                spent += self._reading[2] - count
            else:
                slot = self._running.index(None)
                self._admit(slot, request, row)
                self._reading, dropped[slot] = None, False
        return busy

    def _begin(self) -> bool:
        """Takes the first request of the client whose turn it is, unless one is being read."""
        with self._lock:
            if self._reading is None and self._queues:
                client, queue = next(iter(self._queues.items()))
                self._reading = queue[0], None, 0
                self._queues.move_to_end(client)
                self._take(client, queue[0])
        return self._reading is not None

    def _take(self, client: str, request: Request) -> None:
        """Takes a request out of its client's queue; the caller holds the lock."""
        self._queues[client].remove(request)
        if not self._queues[client]:
            del self._queues[client]

    def _read(self, request: Request, row: Any, count: int) -> tuple[Request, Any, int]:
        """Reads more of a prompt by one call: the row, and how many tokens have been read.

        A short prompt is read in one call, padded on the left. A long one is read without padding,
        first block by block, so that its blocks serve other prompts too.
        """
        prompt = request.prompt
        last = len(prompt) - 1  # the first step reads the last token
        if row is None:
            part = prompt if self.model.reads_prefix else prompt[:-1]
            if 0 < len(part) <= self.whole[-1]:
                size = next(n for n in self.whole if n >= len(part))
                tokens, real = fill([part], 1, size, left=True)
                row = self.programs.read_first(self.params, tokens, real.astype(np.int32))
                return request, row, last
            found = self.prefixes.find(prompt)
            row = self.prefixes.fill(self.programs.copy(self._empty), found)
            return request, row, len(found) * BLOCK
        size = max(n for n in SIZES if n <= last - count)
        tokens = np.asarray([prompt[count : count + size]], np.int32)
        row = self.programs.read(self.params, row, tokens)
        if size == BLOCK:
            self.prefixes.keep(prompt, row, count // BLOCK)
        return request, row, count + size

    def _admit(self, slot: int, request: Request, row: Any) -> None:
        said = np.full(self._slots.said.shape[1], -1, np.int32)
        said[: len(request.prompt)] = request.prompt
        top_k = np.int32(min(request.top_k, 2**31 - 1))
        controls = np.float32(request.temperature), top_k, np.float32(request.top_p)
        numbers = np.int32(len(request.prompt)), np.int32(request.new_tokens)
        marks = marks_of(request.prompt, request.number, request.seed)
        how = np.int32(slot), row, said, *numbers, marks, controls
        self._running[slot] = request
        self._fit()
        self._slots = self.programs.admit(self._slots, *how)

    def _fit(self) -> None:
        """Gives the slots the room that their texts need in the next step; less only if they need
        no more than half."""
        sizes = [len(r.prompt) + r.made + BLOCK + STEPS for r in self._running if r]
        need = min(max(self._least, *sizes), self.lengths[-1])
        wanted = next(n for n in self.lengths if n >= need)
        wanted = wanted if need > self._length or 2 * need <= self._length else self._length
        while self._length != wanted:  # one size after the other, so that few are compiled
            place = self.lengths.index(self._length) + (1 if wanted > self._length else -1)
            self._length = self.lengths[place]
            self._slots = self.programs.resize(self._slots, self._length)
