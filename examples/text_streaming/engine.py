"""Continuous batching: one step of the network for all texts that are being generated.

A new text joins at the next step, however long the others already are. One that is complete, or that nobody reads any
more, leaves before the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from model import Batch, Network

LONGEST_TEXT = 4096
HIGHEST_TEMPERATURE = 2.0


class _Text:
    """A text that is read while it is being generated."""

    def __init__(self, prompt: str, temperature: float, length: int) -> None:
        self.prompt = prompt
        self.temperature = temperature
        self.missing = length  # characters that are still to be written
        self.error: Exception | None = None
        self._unread = ""
        self._news = asyncio.Event()

    def write(self, character: str) -> None:
        self._unread += character
        self.missing -= 1
        self._news.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._news.set()

    async def read(self) -> str:
        """Waits for new text, and returns all of it; returns an empty string at the end."""
        while not self._unread and self.missing:
            if self.error is not None:
                raise self.error
            self._news.clear()
            await self._news.wait()
        unread, self._unread = self._unread, ""
        return unread


class Engine:
    """Generates many texts at the same time, all for tasks of one event loop, that of the model.

    Args:
        network: Predicts the next character of each text.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._texts: set[_Text] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def active(self) -> int:
        """The number of texts that are being generated."""
        return len(self._texts)

    async def generate(self, prompt: str, length: int, temperature: float) -> AsyncGenerator[str, None]:
        """Yields a text piece by piece as it is generated; closing the generator ends the text.

        Args:
            prompt: The start of the text.
            length: Number of characters to generate.
            temperature: The randomness; at 0, the next character is always the likeliest one.

        Raises:
            ValueError: The length or the temperature is out of range.
        """
        if not 1 <= length <= LONGEST_TEXT:
            raise ValueError(f"A text of {length} characters is requested; request 1 to {LONGEST_TEXT}.")
        if not 0 <= temperature <= HIGHEST_TEMPERATURE:
            raise ValueError(f"The temperature is {temperature}; choose one from 0 to {HIGHEST_TEMPERATURE}.")
        text = _Text(prompt, temperature, length)
        self._texts.add(text)
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        try:
            while unread := await text.read():
                yield unread
        finally:
            self._texts.remove(text)

    async def _write(self) -> None:
        """Takes steps as long as there is a text to write."""
        batch = Batch(self._network)
        rows: list[_Text] = []
        try:
            while wanted := {text for text in self._texts if text.missing}:
                stay = [row for row, text in enumerate(rows) if text in wanted]
                if len(stay) < len(rows):
                    batch.keep(stay)
                    rows = [rows[row] for row in stay]
                for text in wanted.difference(rows):
                    batch.add(text.prompt, text.temperature)
                    rows.append(text)
                # A step takes less time than a switch to another thread and back.
                for text, character in zip(rows, batch.step(), strict=True):
                    text.write(character)
                await asyncio.sleep(0)  # let the readers run
        except Exception as error:
            for text in self._texts:
                text.fail(error)
        finally:
            self._task = None
