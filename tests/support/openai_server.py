"""A small OpenAI-compatible server of the standard library, with faults on demand.

It decodes on a clock: at each tick every open stream gets its next token, as a continuous batch
does it, and prompts are computed one after another. Run as a script it is a command to be started.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("none", "die", "short", "refuse", "strict", "hang", "hits", "metrics", "no-usage")
FAULTS += ("eager", "miscount", "pairs", "prompt", "plain", "error", "no-json", "not-http")


class Server(ThreadingHTTPServer):
    """One server; ``seen`` keeps the bodies of its requests."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, port: int, fault: str = "none", step_ms: float = 4.0, prefill_ms: float = 1.0
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.fault, self.step_s, self.prefill_s = fault, step_ms / 1e3, prefill_ms / 1e3
        self.seen: list[dict[str, Any]] = []
        self.prefills = threading.Lock()
        self.cached = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class Handler(BaseHTTPRequestHandler):
    """The endpoints that an oracle asks."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path == "/get_server_info" and self.server.fault == "eager":
            self._plain(200, {"internal_states": [], "disable_cuda_graph": True})
        elif self.path == "/v1/models":
            self._plain(200, {"data": [{"id": "scripted"}]})
        elif self.path == "/metrics" and self.server.fault == "metrics":
            text = f'vllm:prefix_cache_hits_total{{engine="0"}} {float(self.server.cached)}\n'
            self._plain(200, text)
        else:
            self._plain(404, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(asked)
        fault = self.server.fault
        if fault == "refuse":
            self._plain(503, {"error": "too busy"})
        elif fault == "strict" and "ignore_eos" in asked:
            self._plain(400, {"error": "unknown field ignore_eos"})
        elif fault == "not-http":
            self.wfile.write(b"hello\r\n\r\n")
            self.close_connection = True
        else:
            self._stream(asked)

    def _plain(self, status: int, content: Any) -> None:
        body = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, asked: dict[str, Any]) -> None:
        fault, tokens = self.server.fault, int(asked["max_tokens"])
        hits = len(asked["prompt"]) // 2 if fault in ("hits", "metrics") else 0
        self.server.cached += hits
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if fault != "plain":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with self.server.prefills:
            time.sleep(self.server.prefill_s)
        if fault == "hang":
            time.sleep(60)
        late = len(self.server.seen) > 8
        count = tokens // 2 if fault == "short" and late else tokens
        size = 2 if fault == "pairs" else 1
        for done in range(0, count, size):
            if fault == "die" and late and done >= 3:
                os._exit(7)
            if done:
                now = time.monotonic()
                time.sleep(self.server.step_s - now % self.server.step_s)
            self._event({"choices": [{"text": "x" * size, "finish_reason": None}], "usage": None})
        if fault == "error":
            self._event({"error": {"message": "engine is dead"}})
        if fault == "no-json":
            self._send(b"data: {\n\n")
        self._event({"choices": [{"text": "", "finish_reason": "length"}]})
        if fault != "no-usage":
            said = count + 1 if fault == "miscount" else count
            usage: dict[str, Any] = {"prompt_tokens": len(asked["prompt"])}
            usage["prompt_tokens"] += fault == "prompt"
            usage["completion_tokens"] = said
            if fault == "hits":
                usage["prompt_tokens_details"] = {"cached_tokens": hits}
            self._event({"choices": [], "usage": usage})
        self._send(b"data: [DONE]\n\n")
        if fault != "plain":
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def _event(self, content: dict[str, Any]) -> None:
        self._send(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _send(self, data: bytes) -> None:
        if self.server.fault != "plain":
            data = f"{len(data):x}\r\n".encode() + data + b"\r\n"
        self.wfile.write(data)
        self.wfile.flush()


def main(arguments: Sequence[str]) -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--step-ms", type=float, default=4.0)
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--child", default="", help="a file for the id of a child that stays")
    parser.add_argument("--enforce-eager", action="store_true")
    asked = parser.parse_args(arguments)
    print("scripted server", flush=True)
    if asked.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(asked.child, "w") as file:  # noqa: PTH123 - starts without pathlib
            file.write(str(child.pid))
    if asked.start_s < 0:
        sys.exit("no such model")
    time.sleep(asked.start_s)
    Server(asked.port, asked.fault, asked.step_ms).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
