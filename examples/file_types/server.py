"""Detects file types from their bytes, until Ctrl-C: ``python examples/file_types/server.py``."""

from typing import NamedTuple

from magika import Magika

from pytriton import GatewayConfig, Triton


class FileType(NamedTuple):
    type: str
    score: float


magika = Magika()


# The type hints declare what the model takes and returns.
def file_type(content: bytes) -> FileType:
    found = magika.identify_bytes(content)
    return FileType(found.output.label, found.score)


with Triton() as triton:
    triton.bind("FileType", file_type)
    triton.serve(gateway=GatewayConfig())
