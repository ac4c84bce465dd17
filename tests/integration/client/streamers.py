"""One interface to the blocking and the asyncio clients of streams."""

from __future__ import annotations

import asyncio

from pytriton.client import AsyncioDecoupledModelClient, DecoupledModelClient


class Blocking:
    """A blocking client of streams, and what one does with it."""

    of_one_response = "ModelClient"  # its like for models that respond once

    def __init__(self, url, model="floats", **arguments):
        self.client = DecoupledModelClient(url, model, **arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()

    def all(self, *inputs, batch=False, **options):
        send_request = self.client.infer_batch if batch else self.client.infer_sample
        return [response["y"].tolist() for response in send_request(*inputs, **options)]

    def first(self, count, *inputs, **options):
        replies = []
        for response in self.client.infer_sample(*inputs, **options):
            replies.append(response["y"].tolist())
            if len(replies) == count:
                break
        return replies


class Asyncio(Blocking):
    """The same with a client for asyncio, a new one for each call."""

    of_one_response = "AsyncioModelClient"

    def __init__(self, url, model="floats", **arguments):
        self.client = None
        self._arguments = (url, model), arguments
        AsyncioDecoupledModelClient(url, model, **arguments)

    def __exit__(self, *_):
        pass

    def all(self, *inputs, batch=False, **options):
        async def send_request():
            async with self._made() as client:
                responses = (client.infer_batch if batch else client.infer_sample)(*inputs, **options)
                return [response["y"].tolist() async for response in responses]

        return asyncio.run(send_request())

    def first(self, count, *inputs, **options):
        async def send_request():
            replies = []
            async with self._made() as client:
                async for response in client.infer_sample(*inputs, **options):
                    replies.append(response["y"].tolist())
                    if len(replies) == count:
                        break
                await asyncio.to_thread(self.after_the_loop)
            return replies

        return asyncio.run(send_request())

    def after_the_loop(self):
        pass

    def _made(self):
        (url, model), arguments = self._arguments
        return AsyncioDecoupledModelClient(url, model, **arguments)


STREAMERS = {"blocking": Blocking, "asyncio": Asyncio}
