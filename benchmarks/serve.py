"""Requests per second and latency of `fedalign serve`, beside a plain FastAPI handler with the same network.

python benchmarks/serve.py RUN FILE.csv               rows of the file, one per request, at 1, 8 and 32 connections
python benchmarks/serve.py RUN FILE.csv --malformed 1000   malformed requests; counts the answers by status

Server and client are two processes on one machine. Both servers use uvicorn with the same settings. The plain handler
is what a first version looks like: a pydantic model of the body, one forward pass per request, a dictionary as answer.
`--plain sync` is a function, which FastAPI runs on its thread pool; `--plain async` runs on the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from fedalign import Model
from fedalign.inference.files import reading_of

CONNECTIONS = (1, 8, 32)
SECONDS = 0.5  # of one turn: short, so that all servers see the same load of the machine


# --- the plain handler ------------------------------------------------------------------------------------------------


class Body(BaseModel):
    rows: list[Any]


def plain(run: str, style: str) -> None:
    """A server as one would write it first; prints its port."""
    model = Model.load(run)
    app = FastAPI()

    def answer(body: Body) -> dict[str, Any]:
        with torch.no_grad():
            logits = model.network(model.prepared(body.rows))
        found = torch.softmax(logits, 1) if model.task == "single" else torch.sigmoid(logits)
        values, order = found.topk(3, dim=1)
        return {
            "predictions": [
                {
                    "top": [
                        {"label": model.label_names[c], "probability": p} for c, p in zip(classes, likely, strict=True)
                    ]
                }
                for classes, likely in zip(order.tolist(), values.tolist(), strict=True)
            ]
        }

    if style == "sync":

        @app.post("/predict")
        def sync_predict(body: Body) -> dict[str, Any]:
            return answer(body)
    else:

        @app.post("/predict")
        async def async_predict(body: Body) -> dict[str, Any]:
            return answer(body)

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, date_header=False)
    uvicorn.Server(config).run(sockets=[listening])


# --- the client -------------------------------------------------------------------------------------------------------


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return status, await reader.readexactly(length)


def request(body: bytes, kind: str = "application/json", address: str = "/predict", method: str = "POST") -> bytes:
    head = (
        f"{method} {address} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body


async def load(port: int, bodies: list[bytes], connections: int, seconds: float) -> tuple[float, list[float]]:
    """Requests per second, and the latency of each, with as many requests at once as connections."""
    latencies: list[float] = []
    began = time.perf_counter()
    until = began + seconds

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = number
        while time.perf_counter() < until:
            sent = time.perf_counter()
            writer.write(bodies[place % len(bodies)])
            status, _ = await answered(reader)
            assert status == 200
            latencies.append(time.perf_counter() - sent)
            place += 1
        writer.close()

    await asyncio.gather(*map(one, range(connections)))
    return len(latencies) / (time.perf_counter() - began), latencies


def started(command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """A server's process and its port, once it has printed its address."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "http://127.0.0.1:" in line:
            return process, int(line.split("http://127.0.0.1:")[1].split("/")[0])
    raise SystemExit("the server did not start")


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """What the server has computed so far. Unlike its rate, it hardly depends on what else the machine does."""
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rows_of(run: Path, path: Path) -> list[bytes]:
    """One request per row of the file, with the columns that the model reads, as a bare text or list of numbers."""
    model = Model.load(run)
    reading = reading_of(model)
    columns = reading.features or [reading.text]
    with path.open(encoding="utf-8", newline="") as file:
        found = [[row[name] for name in columns] for row in csv.DictReader(file)]
    rows = [row[0] if reading.text else [float(cell) if cell else None for cell in row] for row in found]
    return [request(json.dumps({"rows": [row]}).encode()) for row in rows if row]


def measure(run: Path, path: Path, seconds: float, turns: int) -> None:
    ours = [sys.executable, "-m", "fedalign", "serve", str(run), "--port", "0"]
    theirs = [sys.executable, __file__, str(run), str(path), "--plain"]
    commands = {"fedalign serve": ours, "plain, sync": [*theirs, "sync"], "plain, async": [*theirs, "async"]}
    bodies = rows_of(run, path)
    servers = {name: started(command) for name, command in commands.items()}
    print(f"{len(bodies)} rows, one per request; median of {turns} turns of {seconds:g} s each")
    print("| | connections | requests per second | p50 ms | p99 ms | CPU ms per request |\n|---|---|---|---|---|---|")
    try:
        for _, port in servers.values():
            asyncio.run(load(port, bodies, 8, 1.0))  # warm up
        for connections in CONNECTIONS:
            found: dict[str, list[tuple[float, list[float], float]]] = {name: [] for name in servers}
            for _ in range(turns):  # in turn, so that other work on the machine falls on all alike
                for name, (process, port) in servers.items():
                    before = cpu_seconds(process)
                    rate, took = asyncio.run(load(port, bodies, connections, seconds))
                    found[name].append((rate, took, cpu_seconds(process) - before))
            for name, turn in found.items():
                took = [latency for _, latencies, _ in turn for latency in latencies]
                cuts = statistics.quantiles(took, n=100)
                rate, used = statistics.median(one[0] for one in turn), sum(one[2] for one in turn) / len(took)
                cells = f"{rate:,.0f} | {1000 * cuts[49]:.2f} | {1000 * cuts[98]:.2f} | {1000 * used:.2f}"
                print(f"| {name} | {connections} | {cells} |", flush=True)
    finally:
        for process, _ in servers.values():
            process.terminate()
            process.wait()


# --- malformed requests -----------------------------------------------------------------------------------------------


def malformed(good: list[bytes], count: int, seed: int) -> list[bytes]:
    """Requests that are wrong in many ways: bytes changed, values of other types, other kinds, cut off or too long."""
    rng = random.Random(seed)
    values = [
        None,
        True,
        -1,
        1e400,
        10**400,
        "",
        "x",
        "\u0000",
        [],
        {},
        [[]],
        [[[]]],
        {"a": 1},
        [None],
        ["x", 1],
        [[1]],
    ]
    kinds = ["application/json", "text/csv", "application/x-ndjson", "application/vnd.apache.parquet", "", "image/png",
             "multipart/form-data", "multipart/form-data; boundary=b"]  # fmt: skip

    def json_body() -> bytes:
        rows = [rng.choice(values) for _ in range(rng.randint(0, 3))]
        shape = rng.choice([{"rows": rows}, {"rows": rng.choice(values)}, rng.choice(values), {"row": rows}, rows])
        return json.dumps(shape).encode()

    def noise() -> bytes:
        return rng.randbytes(rng.randint(0, 200))

    def changed() -> bytes:
        body = bytearray(rng.choice(good).split(b"\r\n\r\n", 1)[1])
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        return bytes(body[: rng.randint(1, len(body))])

    def table() -> bytes:
        lines = [",".join(str(rng.choice(values)) for _ in range(rng.randint(0, 4))) for _ in range(rng.randint(0, 5))]
        return "\n".join(lines).encode()

    def form() -> bytes:
        name = rng.choice([b"a.csv", b"a.parquet", b"a.exe", b"", b"../../a.csv", b"a.jsonl"])
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="' + name + b'"\r\n\r\n'
        return head + rng.choice([noise, table, json_body])() + rng.choice([b"", b"\r\n--b--\r\n", b"\r\n--b\r\n"])

    options = ["", "", "", "?top=x", "?top=-1", "?explain=3", "?threshold=2", "?threshold=nan", "?top=99999", "?a=b"]
    addresses = [*(f"/predict{option}" for option in options), "/nothing"]
    made = []
    for _ in range(count):
        body = rng.choice([json_body, noise, changed, table, form])()
        made.append(request(body, rng.choice(kinds), rng.choice(addresses), rng.choice(["POST"] * 30 + ["GET", "PUT"])))
    return made


async def send_malformed(port: int, requests: list[bytes]) -> Counter[int]:
    """The answers by status; a connection that is closed without an answer counts as 0."""
    found: Counter[int] = Counter()
    for one in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(one)
        try:
            status, body = await asyncio.wait_for(answered(reader), 40)
            found[status] += 1
            assert status == 200 or json.loads(body)["error"]["message"], one
        except asyncio.IncompleteReadError:
            found[0] += 1
        writer.close()
    return found


def count_statuses(run: Path, path: Path, count: int) -> None:
    process, port = started([sys.executable, "-m", "fedalign", "serve", str(run), "--port", "0"])
    try:
        found = asyncio.run(send_malformed(port, malformed(rows_of(run, path), count, 1)))
    finally:
        process.terminate()
        process.wait()
    print(f"{count:,} malformed requests: " + ", ".join(f"{status}: {n}" for status, n in sorted(found.items())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--malformed", type=int)
    parser.add_argument("--plain", choices=["sync", "async"])
    chosen = parser.parse_args()
    if chosen.plain:
        plain(str(chosen.run), chosen.plain)
    elif chosen.malformed:
        count_statuses(chosen.run, chosen.file, chosen.malformed)
    else:
        measure(chosen.run, chosen.file, chosen.seconds, chosen.turns)
