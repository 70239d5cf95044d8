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
COUNTS = tuple(4**n for n in range(10))  # slots at a time, or the most
LENGTHS = tuple(4**n for n in range(4, 15))  # tokens that a slot has room for, or the most
PATIENCE = 50  # steps until room that is not needed is given up
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
    by default as many as the model takes. There are as many slots, each with as much room, as the
    texts of the moment need, in a few sizes up to `slots` and to the context.
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
        self.programs = Programs(model, config, eos_id, self.max_length, BLOCK)
        axes, self._empty = self.programs.find_axes(params), self.programs.empty(params)
        self.prefixes = Prefixes(self._empty, axes, 1, 0 if model.reads_prefix else prefix_bytes)
        self._slots = self.programs.start(self._empty)
        most = self.programs.length
        grows = max(jax.tree.leaves(axes)) >= 0 and not model.reads_prefix
        self.counts_of_slots = [n for n in COUNTS if n < slots] + [slots]
        self.lengths = [n for n in LENGTHS if n < most and grows] + [most]
        # The present numbers of slots and columns, the least ones, and for how long less would do.
        self._room, self._least, self._spare = (1, most), (0, 0), 0
        self.slots, self._running = slots, [None]
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
        up_and_down = lambda sizes: [*sizes, *sizes[-2::-1]]  # noqa: E731
        rooms = [(n, t) for t in self.lengths for n in up_and_down(self.counts_of_slots)]
        rooms += [(n, t) for n in self.counts_of_slots for t in up_and_down(self.lengths)]
        for self._least in rooms:
            self._spare = PATIENCE
            self([Request([0], 1)])
        self._least = 0, 0
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
        self._running = [None if r is None or r.cancelled else r for r in self._running]
        arrived = self._read_prompts()
        if not any(self._running):
            return arrived
        running, waiting = self.counts
        more = running < self.slots and waiting
        self._fit()
        dropped = np.array([request is None for request in self._running])
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

    def _read_prompts(self) -> bool:
        """Reads prompts into free slots, about `BLOCK` tokens; False if none waits for one."""
        spent, busy = 0, False
        while spent < BLOCK and self.counts[0] < self.slots and self._begin():
            busy, (request, row, count) = True, self._reading
            if request.cancelled:
                self._reading = None
            elif row is None or count < len(request.prompt) - 1:
                self._reading = self._read(request, row, count)
                spent += self._reading[2] - count
            else:
                self._admit(request, row)
                self._reading = None
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

    def _admit(self, request: Request, row: Any) -> None:
        self._fit(request)
        slot = self._running.index(None)
        said = np.full(self._slots.said.shape[1], -1, np.int32)
        said[: len(request.prompt)] = request.prompt
        top_k = np.int32(min(request.top_k, 2**31 - 1))
        controls = np.float32(request.temperature), top_k, np.float32(request.top_p)
        numbers = np.int32(len(request.prompt)), np.int32(request.new_tokens)
        marks = marks_of(request.prompt, request.number, request.seed)
        how = np.int32(slot), row, said, *numbers, marks, controls
        self._slots = self.programs.admit(self._slots, *how)
        self._running[slot] = request

    def _fit(self, new: Request | None = None) -> None:
        """Gives the texts, and one that comes, the room that they need in the next step; takes it
        back if less was enough for some time."""
        texts = [request for request in (*self._running, new) if request]
        columns = max(len(request.prompt) + request.made for request in texts) + BLOCK + STEPS
        need = max(len(texts), self._least[0]), max(columns, self._least[1])
        sizes = self.counts_of_slots, self.lengths
        wanted = tuple(
            next((n for n in some if n >= least), some[-1])
            for some, least in zip(sizes, need, strict=True)
        )
        grown = tuple(map(max, wanted, self._room))
        self._spare = self._spare + 1 if grown == self._room != wanted else 0
        wanted = wanted if self._spare > PATIENCE else grown
        for axis in (0, 1):
            while self._room[axis] != wanted[axis]:  # size by size, so that few are compiled
                up = wanted[axis] > self._room[axis]
                place = sizes[axis].index(self._room[axis]) + (1 if up else -1)
                room = [*self._room]
                room[axis] = sizes[axis][place]
                self._resize(*room)

    def _resize(self, count: int, length: int) -> None:
        """Moves the texts into the first of `count` slots with room for `length` tokens."""
        busy = [slot for slot, request in enumerate(self._running) if request]
        order = np.array((busy + [0] * count)[:count], np.int32)
        self._slots = self.programs.resize(self._slots, order, length)
        self._running = [self._running[slot] for slot in busy] + [None] * (count - len(busy))
        self._room = count, length
