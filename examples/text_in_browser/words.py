"""A small language model: it chooses the next word by how often it comes next in a text."""

import random
import re
from collections import defaultdict
from collections.abc import Iterator
from pydoc_data.topics import topics

CONTEXT = 2  # words that the next one depends on


def corpus() -> str:
    """Returns the paragraphs of Python's own help that are sentences, not tables or code."""
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", "\n\n".join(topics.values()))]
    return "\n".join(each for each in dict.fromkeys(paragraphs) if each[:1].isupper() and each.endswith("."))


class Words:
    """Counts which words follow others in a text.

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
        """Yields words that continue a prompt, each with a space before it.

        Args:
            prompt: The start of the text.
            length: How many words.
        """
        context = tuple(prompt.split()[-CONTEXT:])
        for _ in range(length):
            while context not in self._next:  # the longest context that it knows
                context = context[1:]
            word = random.choice(self._next[context])
            yield f" {word}"
            context = (*context, word)[-CONTEXT:]
