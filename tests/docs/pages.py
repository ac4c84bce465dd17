"""The code blocks of Markdown pages, and a program that runs those of one page: ``python pages.py PAGE``.

An HTML comment above a block says what is special about it:

- ``<!-- test: skip (why) -->``: it is not run.
- ``<!-- test: while serving -->``: it is run as if in another terminal, while ``triton.serve()`` above it serves.
- ``<!-- test: output -->``: it is what the block above prints.
- ``<!-- test: file PATH -->``: it is that file, in a folder of the page's own, where its programs run from then on.

All other Python blocks of a page share one namespace and are run in order. The server takes free ports, whatever the
page says, and ``serve()`` is ended by Ctrl-C.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]

_COMMENT = re.compile(r"\s*<!-- (?P<kind>test|ci): (?P<text>.*) -->\s*")
_FENCE = re.compile(r"(?P<indent>\s*)```(?P<language>\w*)")
_PORT_SETTINGS = {"http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}
_SHELLS = ("bash", "console")
_STOP_S = 10.0


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: The page's file.
        line: Number of its first line of code.
        language: What stands behind the fence.
        code: Its text.
        test: What the comment above it says to the tests.
        ci: What the comment above it says to ``.ci/run``.
    """

    page: Path
    line: int
    language: str
    code: str
    test: str = ""
    ci: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The command lines of a shell block; lines of a console that do not start with a prompt are its output."""
        lines = self.code.replace("\\\n", " ").splitlines()
        if self.language == "console" and any(line.startswith("$ ") for line in lines):
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return list(_blocks(page, page.read_text().splitlines()))


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    notes: dict[str, str] = {}
    numbered = enumerate(lines, start=1)
    for number, line in numbered:
        comment = _COMMENT.fullmatch(line)
        fence = _FENCE.match(line)
        if comment is not None:
            notes[comment["kind"]] = comment["text"]
        elif fence is not None:
            code = []
            for _, inner in numbered:
                if inner.strip() == "```":
                    break
                code.append(inner.removeprefix(fence["indent"]))
            yield Block(page, number + 1, fence["language"], "\n".join(code) + "\n", **notes)
            notes = {}
        elif line.strip():
            notes = {}


class PageRun:
    """Runs the blocks of one page."""

    def __init__(self, page: Path) -> None:
        self._blocks = collections.deque(blocks_of(page))
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._ports: dict[str, str] = {}
        self._servers: list[tuple[Any, Any]] = []
        self._printed = ""
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self) -> None:
        """Runs them all."""
        self._patch()
        while self._blocks:
            block = self._blocks.popleft()
            if block.test == "while serving":
                raise AssertionError(f"{block}: nothing is being served here")
            self._run(block, self._namespace)

    def _patch(self) -> None:
        from pytriton.gateway import Gateway, GatewayConfig
        from pytriton.gateway.server import GatewayServer
        from pytriton.triton import Triton, TritonConfig

        initialize, serve = Triton.__init__, Triton.serve

        def initialize_with_free_ports(triton: Triton, *, config: TritonConfig | None = None, **kwargs: Any) -> None:
            wanted = config or TritonConfig()
            anywhere = dataclasses.replace(wanted, http_port=0, grpc_port=0, metrics_port=0)
            initialize(triton, config=anywhere, **kwargs)
            self._servers.append((triton, wanted))

        def serve_for_a_while(
            triton: Triton,
            monitoring_period_s: float = 10.0,
            *,
            gateway: GatewayConfig | None = None,
            announce: bool = True,
        ) -> None:
            triton.run()
            with contextlib.ExitStack() as stack:
                if gateway is not None:
                    config = dataclasses.replace(gateway, port=0)
                    gateway_server = GatewayServer(Gateway(triton, config), config)
                    gateway_server.start()
                    stack.callback(gateway_server.stop, _STOP_S)
                    self._ports[str(gateway.port)] = gateway_server.url.rpartition(":")[2]
                while self._blocks and self._blocks[0].test in ("while serving", "output"):
                    self._run(self._blocks.popleft(), {"__name__": "__main__"})
            threading.Thread(target=_interrupt, args=(signal.getsignal(signal.SIGINT),), daemon=True).start()
            serve(triton, monitoring_period_s, announce=announce)

        Triton.__init__, Triton.serve = initialize_with_free_ports, serve_for_a_while  # type: ignore[assignment,method-assign]

    def _run(self, block: Block, namespace: dict[str, Any]) -> None:
        if block.test.startswith("skip"):
            return
        if block.test.startswith("file "):
            self._write(block)
            return
        if block.test == "output":
            if self._printed.strip() != block.code.strip():
                raise AssertionError(f"{block}: the block above printed\n{self._printed}")
        elif block.language == "python":
            code = "\n" * (block.line - 1) + self._with_real_ports(block.code)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(block.page), "exec", dont_inherit=True), namespace)
            self._printed = printed.getvalue()
        elif block.language in _SHELLS and block.test == "while serving":
            command = self._with_real_ports("\n".join(block.commands))
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command], capture_output=True, text=True, timeout=30, check=False
            )
            if done.returncode != 0:
                raise AssertionError(f"{block}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
            self._printed = done.stdout

    def _write(self, block: Block) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory()
            os.chdir(self._folder.name)
        path = Path(block.test.removeprefix("file "))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.code)

    def _with_real_ports(self, code: str) -> str:
        for triton, wanted in self._servers:
            if triton.is_alive():  # or else its ports are not known, or no longer in use
                for setting, default in _PORT_SETTINGS.items():
                    self._ports[str(getattr(wanted, setting) or default)] = str(getattr(triton.config, setting))
        return re.sub(
            r"\b(localhost|127\.0\.0\.1):(\d+)\b",
            lambda match: f"{match[1]}:{self._ports.get(match[2], match[2])}",
            code,
        )


def _interrupt(handler: object) -> None:
    """Presses Ctrl-C as soon as `serve` listens for it."""
    while signal.getsignal(signal.SIGINT) is handler:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    os.environ["RAY_SCHEDULER_EVENTS"] = "0"  # which would print among what the page prints
    PageRun(Path(sys.argv[1]).resolve()).run()
