"""The server under load, beside the same sentences offline in one file: throughput, and what happens when far too much is asked.

    python benchmarks/serve.py --input sentences.txt [--model translator] [--to it] [--clients 64] [--turns 3]

The model works in two processes that take turns: one translates the file as `regard translate` does, the other is `regard serve`, asked
over loopback by this process, one sentence a request, each client sending its next when it has the answer to its last. That both say the
same is checked. Then requests come by chance at four times the speed that was measured, whether or not earlier ones are answered: those
that are taken must succeed, the rest be told to come again, and memory stay near what as many batches as there are workers take offline.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LEAST_SHARE = 0.7  # of the offline throughput
MOST_BEYOND = 256 << 20  # bytes of memory under overload beyond the model and, for each worker, what a batch takes offline
OFFLINE = """
import json, sys, time
import regard
model = regard.load(sys.argv[1], precision=sys.argv[3])
for line in sys.stdin:
    texts = json.loads(line)
    begun = time.perf_counter()
    answers = [answer.text for answer in model.translate(texts, sys.argv[2] or None)]
    print(json.dumps([time.perf_counter() - begun, answers]), flush=True)
"""


def sentences(path: Path, count: int) -> list[str]:
    """The first so many by chance of a file of lines, or of the first column of a .tsv.gz."""
    if not path.is_file():
        raise SystemExit(f"{path} is not there; name a file of sentences with --input")
    content = path.read_bytes()
    whole = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    lines = [text for line in whole.split("\n") if (text := line.split("\t")[0].strip())]
    random.Random(0).shuffle(lines)
    if len(lines) < count:
        raise SystemExit(f"{path} has {len(lines)} sentences, and {count} are asked for; give --sentences {len(lines)}")
    return lines[:count]


class Offline:
    """The model in a process of its own, a whole file at a time."""

    def __init__(self, model: str, to: str, precision: str) -> None:
        command = [sys.executable, "-c", OFFLINE, model, to, precision]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def translate(self, texts: list[str]) -> tuple[float, list[str]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(texts), file=self.process.stdin, flush=True)
        seconds, answers = json.loads(self.process.stdout.readline())
        return seconds, answers

    @property
    def most_memory(self) -> int:
        """Bytes, at most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert match is not None
        return int(match[1]) << 10

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Served:
    """`regard serve`, and where it listens."""

    def __init__(self, model: str, waiting: int, workers: int | None, precision: str) -> None:
        command = [sys.executable, "-m", "regard", "serve", "--model", model, "--port", "0", "--precision", precision]
        command += ["--max-waiting", str(waiting), *([] if workers is None else ["--workers", str(workers)])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])
        self.told = False

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.told = True

    def close(self) -> int:
        if not self.told:
            self.stop()
        return self.process.wait(120)


@dataclass
class Client:
    """One connection that is kept open: bytes and nothing else, since client and server share the machine."""

    port: int
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, record: object = None) -> tuple[int, bytes]:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        body = b"" if record is None else json.dumps(record).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", lines)
        assert length is not None
        return int(lines.split(" ", 2)[1]), await reader.readexactly(int(length[1]))

    async def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            await self.streams[1].wait_closed()


async def closed_loop(port: int, texts: list[str], to: str, clients: int) -> tuple[float, list[str], list[float]]:
    """Seconds for all, the answers in order, and how long each took: as many clients as said, each with one request at a time."""
    answers, times = [""] * len(texts), [0.0] * len(texts)
    numbers = iter(range(len(texts)))

    async def one(client: Client, numbers: Iterator[int]) -> None:
        for number in numbers:
            begun = time.perf_counter()
            status, body = await client.ask("POST", "/api/translate", {"texts": texts[number], "to": to or None})
            assert status == 200, body
            times[number] = time.perf_counter() - begun
            answers[number] = json.loads(body)["answers"][0]["text"]
        await client.close()

    begun = time.perf_counter()
    await asyncio.gather(*(one(Client(port), numbers) for _ in range(clients)))
    return time.perf_counter() - begun, answers, times


@dataclass
class Overload:
    """What became of requests that came faster than they could be answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0  # answers other than offline
    failed: int = 0  # no answer at all
    times: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


async def open_loop(port: int, texts: list[str], wanted: list[str], to: str, rate: float, seconds: float) -> Overload:
    """Requests by chance, so many a second, each on a connection of its own."""
    found, chance = Overload(), random.Random(1)

    async def one(number: int) -> None:
        client, begun = Client(port), time.perf_counter()
        try:
            status, body = await client.ask("POST", "/api/translate", {"texts": texts[number], "to": to or None})
            await client.close()
        except (OSError, asyncio.IncompleteReadError):
            found.failed += 1
            return
        found.statuses[status] += 1
        if status == 200:
            found.times.append(time.perf_counter() - begun)
            found.wrong += json.loads(body)["answers"][0]["text"] != wanted[number]

    async def watch() -> None:
        while True:
            found.memory.append(await resident(port))
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    asked = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        asked.append(asyncio.create_task(one(chance.randrange(len(texts)))))
        await asyncio.sleep(chance.expovariate(rate))
    await asyncio.gather(*asked)
    watching.cancel()
    found.memory.append(await resident(port))
    return found


async def farewell(served: Served, texts: list[str], to: str) -> int:
    """How many of these requests, all of them taken, are lost when the server is told to end while it works on them."""
    asked = [Client(served.port).ask("POST", "/api/translate", {"texts": text, "to": to or None}) for text in texts]
    under_way = [asyncio.create_task(one) for one in asked]
    await asyncio.sleep(0.5)
    served.stop()
    found = await asyncio.gather(*under_way, return_exceptions=True)
    return sum(isinstance(one, BaseException) or one[0] != 200 for one in found)


async def resident(port: int) -> int:
    client = Client(port)
    _, body = await client.ask("GET", "/metrics")
    await client.close()
    match = re.search(rb"^process_resident_memory_bytes (\S+)", body, re.MULTILINE)
    assert match is not None
    return int(float(match[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("REGARD_DATA", "data")) / "translate" / "en-it.test.tsv.gz"
    parser.add_argument("--input", type=Path, default=data, help="a file of sentences; by default one of $REGARD_DATA")
    parser.add_argument("--model", default="translator")
    parser.add_argument("--to", default="it")
    parser.add_argument("--precision", default="float32", help="in int8 numbers are rounded by what stands beside them, and so differ")
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--overload", type=float, default=4.0, help="times the measured speed")
    parser.add_argument("--seconds", type=float, default=45.0, help="of overload")
    parser.add_argument("--waiting", type=int, default=128, help="texts that may wait under overload")
    cores = min(4, len(os.sched_getaffinity(0)))  # what a server takes by itself
    parser.add_argument("--workers", type=int, default=cores, help="batches that the server works on at once")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = sentences(options.input, options.sentences)
    offline, served = (
        Offline(options.model, options.to, options.precision),
        Served(options.model, options.waiting, options.workers, options.precision),
    )
    try:
        report = measure(options, texts, offline, served)
    finally:
        offline.close()
        code = served.close()
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if code != 0 or report["problems"]:
        raise SystemExit(f"the server ended with {code}; {'; '.join(report['problems'])}")


def measure(options: argparse.Namespace, texts: list[str], offline: Offline, served: Served) -> dict[str, object]:
    speeds: dict[str, list[float]] = {"offline": [], "served": []}
    times: list[float] = []
    loaded = asyncio.run(resident(served.port))
    asyncio.run(closed_loop(served.port, texts[:64], options.to, 8))  # both have seen some text before they are measured
    offline.translate(texts[:64])
    differing, wanted = 0, [""]
    for _ in range(options.turns):
        seconds, wanted = offline.translate(texts)
        speeds["offline"].append(len(texts) / seconds)
        seconds, answers, times = asyncio.run(closed_loop(served.port, texts, options.to, options.clients))
        speeds["served"].append(len(texts) / seconds)
        differing += sum(one != other for one, other in zip(answers, wanted, strict=True))
    middle = {name: statistics.median(own) for name, own in speeds.items()}
    before = asyncio.run(resident(served.port))
    rate = options.overload * middle["served"]
    flood = asyncio.run(open_loop(served.port, texts, wanted, options.to, rate, options.seconds))
    lost = asyncio.run(farewell(served, texts[: options.clients], options.to))
    share = middle["served"] / middle["offline"]
    beyond = max(flood.memory) - loaded - options.workers * max(0, offline.most_memory - loaded)
    problems = {
        f"{differing} answers differ from offline": differing,
        f"only {share:.0%} of the offline throughput": share < LEAST_SHARE,
        f"{flood.failed} requests had no answer": flood.failed,
        f"{flood.wrong} answers under overload differ from offline": flood.wrong,
        f"statuses {dict(flood.statuses)}": set(flood.statuses) - {200, 429},
        "nothing was refused, so it was no overload": not flood.statuses[429],
        f"{lost} requests that were taken were lost by SIGTERM": lost,
        f"{beyond >> 20} MiB more than its batches take offline": beyond > MOST_BEYOND,
    }
    return {
        "sentences": len(texts),
        "clients": options.clients,
        "workers": options.workers,
        "sentences_per_second": speeds,
        "share": share,
        "latency": quantiles(times),
        "overload": {
            "requests_per_second": rate,
            "statuses": dict(flood.statuses),
            "latency": quantiles(flood.times),
            "memory_loaded": loaded,
            "memory_offline": offline.most_memory,
            "memory_before": before,
            "memory_most": max(flood.memory),
        },
        "lost_by_sigterm": lost,
        "problems": [problem for problem, there in problems.items() if there],
    }


def quantiles(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def show(report: dict) -> None:
    for name, own in report["sentences_per_second"].items():
        print(f"{name:10}{statistics.median(own):8.1f} sentences a second ({min(own):.1f} … {max(own):.1f})")
    latency, flood = report["latency"], report["overload"]
    print(f"{'share':10}{report['share']:8.0%} with {report['clients']} clients; p50 {latency['p50']:.2f} s, p95 {latency['p95']:.2f} s")
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(flood["statuses"].items()))
    slow = f"p95 of those taken {flood['latency']['p95']:.1f} s"
    print(f"{'overload':10}{flood['requests_per_second']:8.1f} requests a second: {statuses}; {slow}")
    print(f"{'SIGTERM':10}{report['lost_by_sigterm']:8} lost of {report['clients']} requests under way")
    names = {
        "memory_loaded": "the model",
        "memory_offline": "offline at most",
        "memory_before": "served before the overload",
        "memory_most": "at most under it",
    }
    print(f"{'memory':10}{', '.join(f'{flood[key] >> 20:,} MiB {name}' for key, name in names.items())}")


if __name__ == "__main__":
    main()
