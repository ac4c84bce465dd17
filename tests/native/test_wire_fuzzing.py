"""The decoders of C++ with random messages: they accept valid messages, and read nothing outside of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def test_the_cpp_decoder_reads_nothing_outside_of_a_message(native: Any) -> None:
    (program,) = native.build("wire_fuzz_address")
    done = native.run(program, "20000")
    assert done.returncode == 0, done.stdout
    accepted, refused = (int(part.split()[1]) for part in done.stdout.split(", "))
    assert accepted > 1000 and refused > 1000


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decoders of C++ with libFuzzer, which only clang has."""
    compiler = shutil.which("clang++")
    if compiler is None:
        pytest.skip("clang++ is not installed")
    program = tmp_path_factory.mktemp("fuzzer") / "wire_libfuzzer"
    here = Path(__file__).parent
    backend = here.parents[1] / "pytriton" / "proxy" / "backend"
    names = ("wire_libfuzzer.cc", "messages.cc", "peer_codecs.cc")
    sources = map(str, [*(here / name for name in names), *(backend / "wire").glob("*.cc")])
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    command = [compiler, *flags, f"-I{backend}", f"-I{here}", *sources, "-o", str(program)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if "libclang_rt.fuzzer" in done.stdout:
        pytest.skip("clang++ is installed without libFuzzer")
    assert done.returncode == 0, done.stdout
    return program


@pytest.mark.timeout(700)
@pytest.mark.parametrize("seconds", [3, pytest.param(600, marks=pytest.mark.slow)])
def test_libfuzzer_finds_no_message_that_the_cpp_decoder_mishandles(fuzzer: Path, tmp_path: Path, seconds: int) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    subprocess.run([fuzzer, "--corpus", corpus], check=True)
    # Not by its peak of memory, to which that of the process that starts it counts.
    limits = ["-timeout=10", "-malloc_limit_mb=1024", "-rss_limit_mb=0"]
    command = [fuzzer, f"-max_total_time={seconds}", "-max_len=4096", *limits, corpus]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "Done " in done.stdout
