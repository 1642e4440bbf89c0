"""What the supervisor asks of its SuperLink: register keys, list nodes, start and watch a run."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedalign.deploy.launch import CONTROL_HEADER


@dataclass(frozen=True)
class NodeState:
    """A registered key as the SuperLink sees it."""

    number: int
    name: str
    online: bool


class _Secret:
    """Adds the secret to each request."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers[CONTROL_HEADER] = self.secret.decode()
        return call_next(context)


class Control:
    """A client of the Control API."""

    def __init__(self, address: str, certificate: Path, secret: bytes) -> None:
        from flwr.supercore.control.control_http_client import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self.client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=certificate.read_bytes(),
            interceptors=[_Secret(secret), RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def close(self) -> None:
        self.client.close()

    def nodes(self) -> list[NodeState]:
        from flwr.proto.control_pb2 import ListNodesRequest

        found = self.client.ListNodes(ListNodesRequest()).nodes_info
        return [NodeState(node.node_id, node.name, node.status == "online") for node in found]

    def register(self, name: str, public_key: bytes) -> None:
        from flwr.proto.control_pb2 import RegisterNodeRequest

        self.client.RegisterNode(RegisterNodeRequest(public_key=public_key, name=name))

    def unregister(self, node: int) -> None:
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self.client.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def start_run(self, app: Path, settings: dict[str, Any]) -> int:
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        data = build_fab_from_disk(app)
        bundle = Fab(hashlib.sha256(data).hexdigest(), data, {})
        request = StartRunRequest(fab=fab_to_proto(bundle), override_config=user_config_to_proto(settings))
        return int(self.client.StartRun(request).run_id)

    def stop_run(self, run: int) -> None:
        from flwr.proto.control_pb2 import StopRunRequest

        self.client.StopRun(StopRunRequest(run_id=run))

    def run_state(self, run: int) -> tuple[str, str, str]:
        """Returns status, its kind once the run has ended, and details."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return found.status, found.sub_status, found.details

    def follow(self, run: int, line: Callable[[str], None]) -> threading.Thread:
        """Calls `line` with each line that the run's app logs, from a thread of its own."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        def read() -> None:
            rest = ""
            try:
                for part in self.client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=0.0)):
                    *whole, rest = (rest + part.log_output).split("\n")
                    for text in whole:
                        line(text)
            except Exception:  # the connection ends with the SuperLink
                return

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread
