"""A worker that has imported everything once and answers each message in a process forked from it.

Flower starts a new Python for every message, which spends seconds on imports. The worker asks for tasks like Flower's
SuperExec, with a secret that only this user can read. On a party's machine it runs the installed package and never the
code that a server sends.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import sys
import time
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

from fedalign.deploy.launch import end_with_parent

if TYPE_CHECKING:
    from flwr.supercore.runtime import RuntimeHttpClient

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
IDLE = 3.0  # seconds between two questions for tasks; one that is there is announced on the bell
AT_ONCE = 4  # tasks
PATIENCE = 20.0  # seconds until a message must be there whose task was handed out


def run(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("party", "server"))
    parser.add_argument("--address", required=True)
    parser.add_argument("--secret-file", type=Path, required=True)
    parser.add_argument("--bell", type=Path, required=True)  # a pipe on which tasks are announced
    parser.add_argument("--root-certificates", type=Path)
    work(parser.parse_args(words))


def work(given: argparse.Namespace) -> None:
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    preload()
    kind = TaskType.CLIENT_APP if given.side == "party" else TaskType.SERVER_APP
    certificates = given.root_certificates.read_bytes() if given.root_certificates else None
    secret = given.secret_file.read_bytes()
    bell = os.open(given.bell, os.O_RDWR | os.O_NONBLOCK)
    children: set[int] = set()
    client = connect(given.address, certificates, secret)
    while True:
        if reap(children) and given.side == "party":
            sys.exit("error: a task was killed")  # without a reply; the supervisor sees to it that it is sent again
        found = None
        if len(children) < AT_ONCE:
            with contextlib.suppress(httpx.TransportError):  # not there yet, or restarted
                found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        if found is not None and found.HasField("task") and found.token:
            children.add(forked(given, found.token, certificates))
        else:
            wait(bell, IDLE)


def preload() -> None:
    """Imports what a message needs. No torch operation may run before a fork, because its threads do not survive it."""
    import torch

    torch.set_num_threads(1)
    from flwr.superlink.runtime import run_serverapp  # noqa: F401
    from flwr.supernode.runtime import run_clientapp  # noqa: F401

    import fedalign.flower.apps
    import fedalign.flower.party
    import fedalign.flower.party_rows
    import fedalign.flower.server  # noqa: F401

    # a collection in a forked process would visit, and so copy, everything that was imported: 0.3 s for each message
    gc.collect()
    gc.freeze()


def connect(address: str, certificates: bytes | None, secret: bytes) -> RuntimeHttpClient:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=certificates is None,
        root_certificates=certificates,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({ACQUIRE})),
        ],
    )


def wait(bell: int, seconds: float) -> None:
    """Waits until a message is announced."""
    ready, _, _ = select.select([bell], [], [], seconds)
    if ready:
        with contextlib.suppress(BlockingIOError):
            os.read(bell, 4096)


def reap(children: set[int]) -> bool:
    """Forgets tasks that have ended; returns whether one was killed, for lack of memory for example."""
    killed = False
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            killed |= os.WIFSIGNALED(status)
    return killed


def forked(given: argparse.Namespace, token: str, certificates: bytes | None) -> int:
    """Answers one task in a child process; returns its process number."""
    sys.stdout.flush()
    sys.stderr.flush()
    worker, pid = os.getpid(), os.fork()
    if pid:
        return pid
    end_with_parent(worker)  # threads of the worker, such as the one that watches its supervisor, are not in its forks
    code, began, spent = 1, time.monotonic(), time.process_time()
    try:
        if given.side == "party":
            answer_message(given.address, token, certificates)
        else:
            lead_run(given.address, token, certificates)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0) if isinstance(ended.code, int | None) else 1
    except BaseException as error:
        sys.stderr.write(f"error: {type(error).__name__}: {error}\n")
    finally:
        cpu = time.process_time() - spent
        sys.stdout.write(f"task ended with {code} after {time.monotonic() - began:.2f} s, {cpu:.2f} s of them CPU\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise AssertionError


def answer_message(address: str, token: str, certificates: bytes | None) -> None:
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime import run_clientapp as task

    from fedalign.deploy import large_messages
    from fedalign.deploy.launch import pull_quickly
    from fedalign.flower.apps import client_app

    pull_quickly()
    large_messages.install_transfers()
    # the code that the server sent is neither installed nor loaded
    task.install_from_fab = lambda *_words, **_options: None
    task.get_project_dir = lambda *_words, **_options: Path()
    task.get_load_client_app_fn = lambda **_options: lambda *_words: client_app
    pull = RuntimeHttpClient.PullMessages

    def patiently(self: Any, request: Any) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            found = pull(self, request)  # a task is handed out a moment before its message is stored
            if found.messages_list or time.monotonic() > deadline:
                return found
            time.sleep(0.02)

    RuntimeHttpClient.PullMessages = patiently
    task.run_clientapp(**task_options(address, token, certificates))


def lead_run(address: str, token: str, certificates: bytes | None) -> None:
    from flwr.supercore.logger import mirror_output_to_queue
    from flwr.superlink.runtime import run_serverapp

    from fedalign.deploy import large_messages
    from fedalign.deploy.launch import pull_quickly

    pull_quickly()
    large_messages.install_transfers()
    large_messages.install_pulls()
    lines: Queue[str | None] = Queue()
    mirror_output_to_queue(lines)
    run_serverapp(log_queue=lines, **task_options(address, token, certificates))


def task_options(address: str, token: str, certificates: bytes | None) -> dict[str, Any]:
    """What Flower's own command passes to either app."""
    return {
        "runtime_api_address": address,
        "token": token,
        "insecure": certificates is None,
        "certificates": certificates,
        "parent_pid": os.getppid(),
        "runtime_dependency_install": False,
    }
