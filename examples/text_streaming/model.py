"""A small language model that writes text character by character.

It learns from the English text in Python's own help, which takes half a minute on one core, and stores what it has
learned in a folder. ``python examples/text_streaming/model.py`` trains it again and shows what it writes.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

WIDTH = 192
STEPS = 1200
ROWS = 32  # pieces of text per training step
LENGTH = 24  # characters of each
LEARNING_RATE = 8e-3
LONGEST_PROMPT = 256  # characters at the end of a prompt that are read; it would not remember more

# The matrices are so small that several threads would wait for each other more than they compute.
torch.set_num_threads(1)


class Network(nn.Module):
    """Predicts how likely each character is to come next.

    Args:
        alphabet: The characters that it knows.
    """

    def __init__(self, alphabet: str) -> None:
        super().__init__()
        self.alphabet = alphabet
        self._numbers = {character: number for number, character in enumerate(alphabet)}
        self.embedding = nn.Embedding(len(alphabet), WIDTH // 3)
        self.recurrent = nn.GRU(WIDTH // 3, WIDTH, batch_first=True)
        self.output = nn.Linear(WIDTH, len(alphabet))

    def forward(self, characters: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Reads texts.

        Args:
            characters: Numbers of characters, of shape (texts, length).
            state: What is remembered of each text so far, of shape (1, texts, WIDTH); None at the start.

        Returns:
            Logits of what follows each character, of shape (texts, length, size of the alphabet), and the state.
        """
        read, state = self.recurrent(self.embedding(characters), state)
        return self.output(read), state

    def encode(self, text: str) -> Tensor:
        """The numbers of a text's characters, without those that are not in the alphabet."""
        return torch.tensor([self._numbers[each] for each in text if each in self._numbers], dtype=torch.int64)


class Batch:
    """Texts that are written together, one character of each per step; a row for each text."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._last = torch.empty((0, 1), dtype=torch.int64)
        self._state = torch.empty((1, 0, WIDTH))
        self._temperatures = torch.empty((0, 1))

    def __len__(self) -> int:
        return len(self._last)

    @torch.inference_mode()
    def add(self, prompt: str, temperature: float) -> None:
        """Adds a row below the others, for a text that continues the prompt.

        Args:
            prompt: The start of the text, which is read at once.
            temperature: The randomness; at 0, the next character is always the likeliest one.
        """
        characters = self._network.encode("\n" + prompt[-LONGEST_PROMPT:])
        state = torch.zeros((1, 1, WIDTH))
        if len(characters) > 1:
            _, state = self._network(characters[None, :-1])
        self._last = torch.cat([self._last, characters[None, -1:]])
        self._state = torch.cat([self._state, state], dim=1)
        self._temperatures = torch.cat([self._temperatures, torch.tensor([[temperature]])])

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Drops all rows but these, which move up."""
        kept = torch.tensor(rows, dtype=torch.int64)
        self._last, self._state, self._temperatures = self._last[kept], self._state[:, kept], self._temperatures[kept]

    @torch.inference_mode()
    def step(self) -> list[str]:
        """Writes the next character of each row."""
        logits, self._state = self._network(self._last, self._state)
        # The largest of logits / temperature + Gumbel noise is a sample of their softmax. Multiplied by the
        # temperature, the same holds for 0, and rows of all temperatures are sampled at once.
        noise = -torch.empty_like(logits[:, 0]).exponential_().log()
        self._last = (logits[:, 0] + self._temperatures * noise).argmax(dim=1, keepdim=True)
        return [self._network.alphabet[number] for number in self._last[:, 0].tolist()]


def corpus() -> str:
    """The paragraphs in the help of Python that are sentences, not tables or code; one per line."""
    plain = "\n\n".join(topics.values()).translate(str.maketrans("‘’“”–—", "''\"\"--"))
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", plain)]
    sentences = [each for each in paragraphs if each.isascii() and each[:1].isupper() and each.endswith(".")]
    return "\n".join(dict.fromkeys(sentences))


def train(steps: int = STEPS) -> Network:
    """Trains a new network; prints its progress."""
    text = corpus()
    torch.manual_seed(0)
    network = Network("".join(sorted(set(text))))
    characters = network.encode(text)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 20) * (0.05 + 0.95 * (1 + math.cos(math.pi * step / steps)) / 2)
    )
    for step in range(1, steps + 1):
        starts = torch.randint(len(characters) - LENGTH, (ROWS, 1))
        pieces = characters[starts + torch.arange(LENGTH + 1)]
        logits, _ = network(pieces[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps:
            print(f"Training, step {step} of {steps}: loss {loss.item():.2f}", flush=True)
    return network


def cache_folder() -> Path:
    """The folder where the network is stored by default."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytriton" / "text_streaming"


def save(network: Network, folder: Path) -> Path:
    """Stores a network in a folder; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"gru-{WIDTH}.pt"
    # Whoever loads it meanwhile finds a complete file, the old one or the new one.
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as new:
        torch.save({"alphabet": network.alphabet, "weights": network.state_dict()}, new)
    Path(new.name).replace(file)
    return file


def load(folder: Path | None = None) -> Network:
    """The network that is stored in a folder; trains it first if there is none."""
    folder = folder or cache_folder()
    file = folder / f"gru-{WIDTH}.pt"
    if not file.exists():
        save(train(), folder)
    kept = torch.load(file, weights_only=True)
    network = Network(kept["alphabet"])
    network.load_state_dict(kept["weights"])
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model, store it, and show what it writes.")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder to store it in")
    parser.add_argument("--steps", type=int, default=STEPS, help="how long to train it")
    arguments = parser.parse_args()

    print(f"Stored in {save(train(arguments.steps), arguments.cache)}. It writes:\n")
    batch = Batch(load(arguments.cache))
    batch.add("The ", temperature=0.5)
    print("The " + "".join(character for _ in range(500) for character in batch.step()))


if __name__ == "__main__":
    main()
