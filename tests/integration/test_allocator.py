"""The bundled server's memory allocator."""

from __future__ import annotations

import pathlib
import subprocess

import pytest
from serving import bind_floats, needs_bundled_server, running_triton, send_floats, server_of

from pytriton.decorators import batch

# As jemalloc does, for one function: memory of the C library is not what another allocator can free.
ALLOCATOR = """
#include <stddef.h>
void* __libc_malloc(size_t size);
void* malloc(size_t size) { return __libc_malloc(size); }
"""


def has_allocator(process):
    return "libmimalloc.so" in pathlib.Path(f"/proc/{process.pid}/maps").read_text()


@pytest.fixture
def server():
    """The process of a server that is started with the environment of the test."""
    running = []

    def server():
        triton = running_triton()
        running.append(triton)
        triton.run()
        return server_of(triton)

    yield server
    for triton in running:
        triton.stop()


@needs_bundled_server
def test_the_bundled_server_has_its_own_allocator(server):
    assert has_allocator(server())


@needs_bundled_server
@pytest.mark.parametrize("delay_ms", ["10000", "50"])
def test_the_environment_sets_how_long_freed_memory_is_kept(server, monkeypatch, delay_ms):
    if delay_ms != "10000":  # which is the default
        monkeypatch.setenv("MIMALLOC_PURGE_DELAY", delay_ms)
    environment = pathlib.Path(f"/proc/{server().pid}/environ").read_bytes().split(b"\0")
    assert f"MIMALLOC_PURGE_DELAY={delay_ms}".encode() in environment


@needs_bundled_server
@pytest.mark.parametrize(
    ("variable", "value"),
    [("PYTRITON_ALLOCATOR", "0"), ("MALLOC_TOP_PAD_", "65536"), ("GLIBC_TUNABLES", "glibc.malloc.perturb=0")],
)
def test_the_environment_chooses_the_allocator_of_the_system(server, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    assert not has_allocator(server())


@needs_bundled_server
def test_an_allocator_that_the_user_preloads_is_the_only_one(tmp_path, monkeypatch):
    source, library = tmp_path / "allocator.c", tmp_path / "allocator.so"
    source.write_text(ALLOCATOR)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    with running_triton() as triton:
        bind_floats(triton, "echo", batch(lambda x: [x]))
        triton.run()
        server = server_of(triton)
        maps = pathlib.Path(f"/proc/{server.pid}/maps").read_text()
        assert str(library) in maps
        assert not has_allocator(server)
        assert send_floats(triton, "echo", [3]) == [3]
