"""Readiness, which needs no key."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from pytriton.gateway import Gateway
from pytriton.gateway.local import LocalUpstream


async def checked(gateway: Gateway) -> int:
    status = 0

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    scope = {"type": "http", "method": "GET", "path": "/health/ready", "headers": [], "query_string": b""}
    await gateway(scope, lambda: asyncio.sleep(0, {"type": "http.disconnect"}), send)
    return status


def test_concurrent_checks_share_one_request_to_the_server(monkeypatch: Any) -> None:
    gateway = Gateway("localhost:1")
    questions = []

    async def is_ready() -> bool:
        questions.append(1)
        await asyncio.sleep(0)
        return True

    monkeypatch.setattr(gateway._models.upstream, "is_ready", is_ready)

    async def main() -> None:
        assert await asyncio.gather(*(checked(gateway) for _ in range(100))) == [200] * 100
        assert len(questions) == 1
        assert await checked(gateway) == 200
        assert len(questions) == 2

    asyncio.run(main())


def test_a_server_is_checked_even_while_all_other_threads_are_busy() -> None:
    released = threading.Event()
    triton: Any = SimpleNamespace(report=None, is_ready=lambda: True)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.ensure_future(asyncio.to_thread(released.wait))
        try:
            assert await asyncio.wait_for(LocalUpstream(triton, 1).is_ready(), 5)
        finally:
            released.set()
            await busy

    asyncio.run(main())
