"""A small language model: which word comes next, by how often it did in a text."""

import random
import re
from collections import defaultdict
from collections.abc import Iterator
from pydoc_data.topics import topics

CONTEXT = 2  # words that the next one depends on


def corpus() -> str:
    """Returns the paragraphs of Python's own help that are sentences, neither tables nor code."""
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", "\n\n".join(topics.values()))]
    return "\n".join(each for each in dict.fromkeys(paragraphs) if each[:1].isupper() and each.endswith("."))


class Words:
    """Knows which words follow which in a text.

    Args:
        text: What it learns from, a paragraph in each line.
    """

    def __init__(self, text: str) -> None:
        self._next: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
        for line in text.splitlines():
            words = line.split()
            for position, word in enumerate(words):
                for length in range(CONTEXT + 1):
                    if length <= position:
                        self._next[tuple(words[position - length : position])].append(word)

    def following(self, prompt: str, length: int) -> Iterator[str]:
        """Yields words that go on from a prompt, each with a space before it.

        Args:
            prompt: The start of the text.
            length: How many words.
        """
        context = tuple(prompt.split()[-CONTEXT:])
        for _ in range(length):
            while context not in self._next:  # as far back as it knows
                context = context[1:]
            word = random.choice(self._next[context])
            yield f" {word}"
            context = (*context, word)[-CONTEXT:]
