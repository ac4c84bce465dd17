"""The event that ends streams when the gateway stops."""

from __future__ import annotations

import asyncio

from pytriton.gateway.stop_event import StopEvent


def test_those_who_wait_are_woken_in_any_event_loop():
    async def wait_in_vain():
        waiting = asyncio.ensure_future(event.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])

    async def wait():
        waiting = [asyncio.ensure_future(event.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        event.set()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)

    event = StopEvent()
    for _ in range(2):
        asyncio.run(wait_in_vain())
        assert not event.is_set
    asyncio.run(wait())
    assert event.is_set
    asyncio.run(event.wait())
