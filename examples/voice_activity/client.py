"""Asks the model of ``server.py`` where somebody speaks: ``python examples/voice_activity/client.py speech.wav``."""

import argparse
import time
from pathlib import Path

from pytriton.client import ModelClient

RECORDING = Path(__file__).with_name("speech.wav")


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask the model of server.py where somebody speaks in a recording.")
    parser.add_argument("recording", nargs="?", type=Path, default=RECORDING, help="a WAV file, 16 kHz, mono, 16 bits")
    parser.add_argument("--url", default="localhost:8000", help="the server's URL")
    arguments = parser.parse_args()

    with ModelClient(arguments.url, "VoiceActivity") as client:
        client.wait_for_model(timeout_s=60)
        start = time.perf_counter()
        found = client.infer_sample(audio=arguments.recording.read_bytes())
        seconds = time.perf_counter() - start
    for begin, end in zip(found["start"], found["end"], strict=True):
        print(f"{begin:6.2f} s to {end:6.2f} s")
    print("".join("▁▂▃▄▅▆▇█"[min(int(8 * each), 7)] for each in found["probabilities"][::2]))  # one in 64 ms
    print(f"{1000 * seconds:.0f} ms")


if __name__ == "__main__":
    main()
