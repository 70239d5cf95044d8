"""The load that a server bears: clients over loopback, one request after the other each.

    python -m benchmarks.serving --workdir=runs/gpt [--clients=1,4,16,64] [--requests=48]

Three ways take turns on the same requests, which come from a fixed seed: `serve` with all its slots
(continuous batching), `serve` with one slot (one at a time), and the generator on batches of as
many requests as there are clients, each of which lasts as long as its longest text. All are greedy,
so that they make the same tokens.

`--soak=30` instead loads one server for 30 minutes with ever new requests of three clients, which
rest between two of them; every tenth goes away after its first token. It reports the memory that
the process holds, and how many programs were compiled after the warm-up.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import numpy as np

from benchmarks.common import machine, report
from transformer_lab.opened import open_run

PROMPT, NEW = 60, 96  # the most tokens
REST = 1.5  # mean seconds between two requests of a client in a soak


def requests_of(count: int, vocabulary: int, context: int) -> list[tuple[list[int], int]]:
    """Prompts of 4 to 60 random ids, and limits of 8 to 96 tokens, or what the context allows."""
    rng = np.random.default_rng(0)
    longest = min(PROMPT, context // 3), min(NEW, context // 2)
    return [
        (rng.integers(10, vocabulary, rng.integers(4, longest[0])).tolist(),
         int(rng.integers(8, longest[1])))
        for _ in range(count)
    ]  # fmt: skip


class Server:
    """`serve` in a process of its own."""

    def __init__(self, workdir: str, slots: int, *more: str):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = ["serve", f"--workdir={workdir}", f"--port={self.port}", f"--slots={slots}"]
        command += [f"--context={PROMPT + NEW}", *more]
        self.process = subprocess.Popen([sys.executable, "-m", "transformer_lab", *command])
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health").close()
                return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("the server did not start")

    def memory(self) -> float:
        """Megabytes that the process holds."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            line = next(line for line in file if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def metric(self, name: str) -> float:
        """A number that /metrics shows."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            return float(re.search(rf"^\w+_{name} (\S+)$", answer.read().decode(), re.M)[1])

    async def ask(self, prompt: list[int], new: int, leaves: bool = False) -> tuple[float, int]:
        """Seconds to the first event, and the tokens made, of a streamed completion, of which a
        client that `leaves` reads the first event alone."""
        body = {"prompt": prompt, "max_tokens": new, "temperature": 0, "stream": True}
        body = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
        began, first, made = time.perf_counter(), None, 0
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"Host: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        async for line in reader:
            if line.startswith(b"data: [DONE]") or (leaves and first):
                break
            if line.startswith(b"data: "):
                first = first or time.perf_counter() - began
                made = (json.loads(line[6:]).get("usage") or {}).get("completion_tokens", made)
        writer.close()
        return first, made

    async def load(self, requests, clients: int) -> tuple[float, list[float]]:
        """Tokens a second of so many clients together, and each request's time to its first."""
        left, found = iter(requests), []

        async def client():
            for request in left:
                found.append(await self.ask(*request))

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        seconds = time.perf_counter() - began
        return sum(made for _, made in found) / seconds, [first for first, _ in found]


def soak(server: Server, minutes: float, vocabulary: int, append: str | None) -> None:
    """Loads a server with ever new requests; prompts of 20 to 100 ids, 8 to 48 new tokens."""
    began, compiled, asked = time.time(), server.metric("compilations"), 0
    memory = []  # (minutes since the start, megabytes, requests so far)

    async def client(number: int):
        nonlocal asked
        rng = np.random.default_rng(number)
        while time.time() < began + 60 * minutes:
            prompt = rng.integers(10, vocabulary, rng.integers(20, 101)).tolist()
            await server.ask(prompt, int(rng.integers(8, 49)), leaves=rng.random() < 0.1)
            asked += 1
            await asyncio.sleep(rng.exponential(REST))

    async def watch():
        while True:
            memory.append(((time.time() - began) / 60, server.memory(), asked))
            print("soak: minute {:.1f}, {:.1f} MB, {:,} requests".format(*memory[-1]), flush=True)
            await asyncio.sleep(6 * minutes)  # ten times in all

    async def run():
        watching = asyncio.create_task(watch())
        await asyncio.gather(*map(client, range(3)))
        watching.cancel()

    asyncio.run(run())
    memory.append((minutes, server.memory(), asked))
    shown = ", ".join(f"{megabytes:.0f}" for _, megabytes, _ in memory)
    more = server.metric("compilations") - compiled
    report(
        f"serve, {minutes:g} minutes",
        f"{asked:,} requests, {server.metric('new_tokens_total'):,.0f} tokens; {shown} MB at even "
        f"intervals; {more:.0f} programs compiled after the warm-up",
        append,
    )


def in_batches(run, requests, rows: int) -> float:
    """Tokens a second of the generator, which takes `rows` requests at once."""
    generator, made, began = run.task.generator(run.place), 0, time.perf_counter()
    for first in range(0, len(requests), rows):
        some = requests[first : first + rows]
        ids = [prompt for prompt, _ in some]
        enough = dict(zip(map(tuple, ids), (new for _, new in some), strict=True))
        stops = lambda prompt, out, enough=enough: len(out) >= enough[tuple(prompt)]  # noqa: E731
        found = [0] * len(some)
        for row, new, _ in generator.stream(run.params, ids, stops=stops, chunk=16):
            found[row] += len(new)
        made += sum(min(n, new) for n, (_, new) in zip(found, some, strict=True))
    return made / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workdir", required=True, help="the run of a language model")
    parser.add_argument("--clients", default="1,4,16,64", help="numbers of clients")
    parser.add_argument("--requests", type=int, default=48, help="requests of each turn")
    parser.add_argument("--slots", type=int, default=16, help="of the server that batches")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way")
    parser.add_argument("--soak", type=float, default=0, help="minutes of load, and no table")
    parser.add_argument("--append", help="a file that gets the results as table rows")
    args = parser.parse_args()
    changes = {"decode.temperature": 0.0, "decode.max_new_tokens": NEW}
    run = open_run(args.workdir, changes)
    model = run.task.model.config
    if args.soak:
        # room for about 160 blocks of 64 tokens of a small model, which are soon taken
        server = Server(args.workdir, args.slots, "--prefix_megabytes=64")
        try:
            soak(server, args.soak, model.vocab_size, args.append)
        finally:
            server.process.terminate()
            server.process.wait()
        return
    requests = requests_of(args.requests, model.vocab_size, model.max_length)
    servers = {
        "continuous": Server(args.workdir, args.slots),
        "one at a time": Server(args.workdir, 1),
    }
    print(f"{machine()}; the load average is {os.getloadavg()[0]:.1f}", flush=True)
    try:
        for clients in map(int, args.clients.split(",")):
            rates: dict[str, list[float]] = {name: [] for name in (*servers, "static batches")}
            firsts: dict[str, list[float]] = {name: [] for name in servers}
            in_batches(run, requests[:clients], clients)  # compiles
            for _ in range(args.rounds):
                for name, server in servers.items():
                    rate, times = asyncio.run(server.load(requests, clients))
                    rates[name].append(rate)
                    firsts[name] += times
                rates["static batches"].append(in_batches(run, requests, clients))
            parts = []
            for name, values in rates.items():
                part = f"{name} {statistics.median(values):,.0f} tokens/s"
                if name in firsts:
                    low, high = 1e3 * np.percentile(firsts[name], [50, 99])
                    part += f", first token p50 {low:,.0f} ms p99 {high:,.0f} ms"
                parts.append(part)
            report(f"serve, {clients} clients", "; ".join(parts), args.append)
    finally:
        for server in servers.values():
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
