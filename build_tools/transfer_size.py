"""Workaround for Triton (transfer-size): raises the HTTP front end's transfer size in the bundled executable.

libevent, which is linked into the server, reads 4 KiB and writes 16 KiB of a connection at a time, each time with a
turn of its event loop. An image of 600 kB needs some 150 turns, which is most of its time in the server. Both sizes
are constants that neither an option nor a call changes, so the build writes other numbers into the executable.
``docs/decisions/transfer-size.md`` has the measurements and the build switch.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

SIZE = 256 * 1024
"""Bytes that are read or written at a time. Small requests take no more memory than before."""


class Constant(NamedTuple):
    """A number in the executable, little-endian."""

    offset: int
    code: str  # the bytes before it in hexadecimal, which identify the version of the server
    value: int
    width: int


# Of Triton 2.51 as in nvidia-pytriton 0.7.0; `objdump --disassemble=FUNCTION tritonserver` shows where they are used.
CONSTANTS = [
    # EVBUFFER_MAX_READ, in evbuffer_read()
    Constant(0x9AA241, "c7442408", 4096, 4),
    Constant(0x9AA25A, "3d", 4096, 4),
    Constant(0x9AA25F, "b8", 4096, 4),
    Constant(0x9AA3BB, "b8", 4096, 4),
    Constant(0x9AA3C0, "be", 4096, 4),
    # MAX_SINGLE_READ_DEFAULT and MAX_SINGLE_WRITE_DEFAULT, in bufferevent_ratelim_init_()
    Constant(0xB7B270, "", 16384, 8),
    Constant(0xB7B278, "", 16384, 8),
]


def raise_transfer_size(executable: Path) -> None:
    """Make a server read and write ``SIZE`` bytes at a time.

    Args:
        executable: the server's executable as published; it is changed in place.

    Raises:
        ValueError: it is another version of the server. The file is unchanged.
    """
    content = bytearray(executable.read_bytes())
    for offset, code, value, width in CONSTANTS:
        published = bytes.fromhex(code) + value.to_bytes(width, "little")
        found = content[offset - len(published) + width : offset + width]
        if found != published:
            raise ValueError(
                f"{executable} has {found.hex()} before {offset + width:#x} where {published.hex()} is expected: it is "
                "another version of the server, whose numbers have to be looked up for build_tools/transfer_size.py."
            )
        content[offset : offset + width] = SIZE.to_bytes(width, "little")
    executable.write_bytes(content)
