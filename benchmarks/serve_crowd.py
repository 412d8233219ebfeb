"""A crowd at the server: many clients that keep their connections and ask again as soon as they have their answer, for minutes.

    python benchmarks/serve_crowd.py [--clients 240] [--seconds 180] [--model translator --to it] [--precision float32]

Every request must have an answer: 200 with the words that the server gave when nobody else asked, or 429 or 503. Nothing may be lost,
and the server must have counted as many of each as the clients were given; /health must be answered in 0.1 s in 95 of 100
cases, and in 5 ms at rest. It ends with 1 where any of that is not so. Needs no data: the sentences are made up, and some are long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from serve import Client, Served  # beside this file

SUBJECTS = ("My sister", "The old teacher", "A friend of mine", "Nobody", "The train", "Every child")
VERBS = ("waits for", "remembers", "never saw", "has lost", "is looking for", "asked about")
OBJECTS = ("the blue house", "a small dog", "two tickets to Rome", "the answer", "breakfast", "a good book", "the last bus")
IDLE_SECONDS = 2.0  # for which /health is asked for while nobody else is there
LOOKED_EVERY = 0.25  # seconds between two questions for /health
MOST_HEALTH = 0.1  # seconds of 95 in 100 of them, while the crowd is there
MOST_IDLE_HEALTH = 0.005  # of their median, while nobody is
LATER = 1.0  # seconds at most that who was refused waits before asking again
ROUTE = "/api/translate"


@dataclass
class Found:
    """What became of all requests."""

    asked: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)  # answers other than alone
    failed: list[str] = field(default_factory=list)  # no answer at all
    times: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)  # how long /health took


def made_up(count: int) -> list[str]:
    """Sentences that differ in words and length: one of three is several joined by commas."""
    chance = random.Random(0)
    found: dict[str, None] = {}
    while len(found) < count:
        parts = [f"{chance.choice(SUBJECTS)} {chance.choice(VERBS)} {chance.choice(OBJECTS)}" for _ in range(chance.choice((1, 1, 4)))]
        found[", and ".join(parts) + "."] = None
    return list(found)


async def alone(port: int, texts: list[str], to: str) -> list[str]:
    """What the server says to each where nobody else asks."""
    client = Client(port)
    found = []
    for text in texts:
        status, body = await client.ask("POST", ROUTE, {"texts": text, "to": to or None})
        assert status == 200, body
        found.append(json.loads(body)["answers"][0]["text"])
    await client.close()
    return found


async def crowd(port: int, texts: list[str], wanted: list[str], to: str, clients: int, seconds: float) -> Found:
    """So many clients at once, each with one request at a time on a connection that it keeps."""
    found, end = Found(), time.perf_counter() + seconds

    async def one(number: int) -> None:
        client, chance = Client(port), random.Random(number)
        while time.perf_counter() < end:
            place, begun = chance.randrange(len(texts)), time.perf_counter()
            found.asked += 1
            try:
                status, body = await client.ask("POST", ROUTE, {"texts": texts[place], "to": to or None})
            except (OSError, EOFError, AssertionError) as error:
                found.failed.append(repr(error))
                client = Client(port)
                continue
            found.statuses[status] += 1
            if status == 200:
                found.times.append(time.perf_counter() - begun)
                if (said := json.loads(body)["answers"][0]["text"]) != wanted[place]:
                    found.wrong.append(f"{texts[place]} → {said}, alone {wanted[place]}")
            else:
                await asyncio.sleep(chance.uniform(0, LATER))
        await client.close()

    await asyncio.gather(look(port, found.health, end), *(one(number) for number in range(clients)))
    return found


async def look(port: int, times: list[float], end: float, pause: float = LOOKED_EVERY) -> None:
    """Asks for /health now and then on a connection that is kept, and notes how long each answer took."""
    client = Client(port)
    while time.perf_counter() < end:
        begun = time.perf_counter()
        status, body = await client.ask("GET", "/health")
        assert status == 200, body
        times.append(time.perf_counter() - begun)
        await asyncio.sleep(pause)
    await client.close()


async def counted(port: int) -> Counter[int]:
    """How many answers of each status the server says it gave."""
    client = Client(port)
    _, body = await client.ask("GET", "/metrics")
    await client.close()
    found = re.findall(rf'^regard_requests_total\{{route="{ROUTE}",status="(\d+)"\}} (\S+)', body.decode(), re.MULTILINE)
    return Counter({int(status): int(float(count)) for status, count in found})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="translator")
    parser.add_argument("--to", default="it")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--clients", type=int, default=240)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--waiting", type=int, default=256, help="texts that may wait")
    parser.add_argument("--workers", type=int, default=None, help="batches at once; by default what the server takes by itself")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    texts = made_up(options.sentences)
    served = Served(options.model, options.waiting, options.workers, options.precision)
    try:
        wanted = asyncio.run(alone(served.port, texts, options.to))
        idle = list[float]()
        asyncio.run(look(served.port, idle, time.perf_counter() + IDLE_SECONDS, 0.01))
        before = asyncio.run(counted(served.port))
        found = asyncio.run(crowd(served.port, texts, wanted, options.to, options.clients, options.seconds))
        theirs = asyncio.run(counted(served.port)) - before
    finally:
        code = served.close()
    slowest = statistics.quantiles(found.health, n=100)[94] if len(found.health) > 1 else math.inf
    at_rest = statistics.median(idle)
    problems = {
        f"statuses {sorted(set(found.statuses) - {200, 429, 503})}": set(found.statuses) - {200, 429, 503},
        f"{len(found.failed)} requests had no answer, as {found.failed[:1]}": found.failed,
        f"{found.asked} asked and {found.statuses.total()} answered": found.asked != found.statuses.total(),
        f"the server counted {dict(theirs)}": theirs != found.statuses,
        f"{len(found.wrong)} answers other than alone, as {found.wrong[:1]}": found.wrong,
        f"/health took {slowest:.3f} s in 95 of 100 cases": slowest > MOST_HEALTH,
        f"/health took {at_rest:.4f} s where nobody else asks": at_rest > MOST_IDLE_HEALTH,
        f"the server ended with {code}": code,
    }
    statuses = ", ".join(f"{count:,} × {status}" for status, count in sorted(found.statuses.items()))
    cuts = statistics.quantiles(found.times, n=100) if len(found.times) > 1 else [0.0] * 99
    print(f"{options.clients} clients for {options.seconds:g} s: {found.asked:,} requests, {statuses}")
    print(f"of those answered p50 {cuts[49]:.2f} s, p95 {cuts[94]:.2f} s")
    print(f"/health: p95 {1000 * slowest:.0f} ms of {len(found.health)} beside them, median {1000 * at_rest:.1f} ms where nobody else asks")
    if options.json:
        record = {
            "asked": found.asked, "statuses": dict(found.statuses), "p50": cuts[49], "p95": cuts[94],
            "health_p95": slowest, "health_at_rest": at_rest,
        }  # fmt: skip
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    if there := [problem for problem, is_there in problems.items() if is_there]:
        raise SystemExit("; ".join(there))


if __name__ == "__main__":
    main()
