"""Finds the sentence with the closest meaning: ``python examples/embeddings/client.py "Is it vegan?"``."""

import argparse
import time

import numpy as np

from pytriton.client import ModelClient

SENTENCES = [
    "We give your money back within 30 days of the purchase.",
    "Parcels to other countries take about a week.",
    "Our office is open from nine to five on weekdays.",
    "Choose a password of at least twelve characters.",
    "The battery lasts for two days of normal use.",
    "Clean the screen with a soft, dry cloth.",
    "The warranty covers repairs for two years.",
    "You can pay by credit card or bank transfer.",
    "There is free parking behind the building.",
    "The soup has no meat, milk or eggs in it.",
]
QUESTIONS = ["Can I get a refund?", "How long does shipping abroad take?", "Where do I leave my car?", "Is it vegan?"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the sentence with the closest meaning.")
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="what to look for")
    parser.add_argument("--url", default="localhost:8000", help="the server's URL")
    arguments = parser.parse_args()

    with ModelClient(arguments.url, "Embeddings") as client:
        known = client.infer_batch(np.array(SENTENCES)[:, np.newaxis])["embedding"]
        start = time.perf_counter()
        for question in arguments.questions:
            similarities = known @ client.infer_sample(question)["embedding"]
            print(question)
            for best in np.argsort(-similarities)[:2]:
                print(f"  {similarities[best]:.2f}  {SENTENCES[best]}")
    print(f"{1000 * (time.perf_counter() - start) / len(arguments.questions):.1f} ms per question")


if __name__ == "__main__":
    main()
