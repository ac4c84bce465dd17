"""The text streaming example: its server, client, README and notebook."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import itertools
import json
import re
import shlex
import subprocess
import sys
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from example_programs import ROOT, line_with, run, running
from jupyter_client.manager import start_new_kernel
from pages import blocks_of

from pytriton.server.config import ENVIRONMENT_PREFIX
from pytriton.triton import Triton, TritonConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install '.[examples]'"),
]

EXAMPLE = ROOT / "examples" / "text_streaming"
NOTEBOOK = EXAMPLE / "notebook.ipynb"
DEADLINE_S = 60


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a network that has not learned much, for the example to find."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            environment.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        for name in ("HTTP", "GRPC", "METRICS"):
            environment.setenv(f"{ENVIRONMENT_PREFIX}{name}_PORT", "0")
        kept = re.search(r"^Stored in (.*)\. It writes:$", run(EXAMPLE / "model.py", "--steps", "20"), re.MULTILINE)
        assert kept is not None
        yield Path(kept[1]).parent


@pytest.fixture(scope="module")
def example(cache: Path) -> Iterator[types.SimpleNamespace]:
    """The modules of the example, which have namesakes in others."""
    names = ("model", "engine", "server", "client")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        modules = {name: importlib.import_module(name) for name in names}
        for name in names:
            del sys.modules[name]
        yield types.SimpleNamespace(**modules)


@pytest.fixture(scope="module")
def network(example: types.SimpleNamespace) -> Any:
    return example.model.load()


@pytest.fixture
def engine(example: types.SimpleNamespace, network: Any) -> Any:
    return example.engine.Engine(network)


@pytest.fixture
def served(example: types.SimpleNamespace, engine: Any) -> Iterator[Triton]:
    """The example's server, in this process, so that one can look into its engine."""
    with Triton(config=TritonConfig(http_port=0, grpc_port=0, metrics_port=0)) as triton:
        example.server.bind(triton, engine)
        triton.run()
        yield triton


@pytest.fixture
def endless(example: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> int:
    """The length of a text that is not finished before a test times out; the engine allows it."""
    monkeypatch.setattr(example.engine, "LONGEST_TEXT", 2**31 - 1)
    return 2**31 - 1


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def written(engine: Any, prompt: str, length: int, temperature: float = 0.0) -> str:
    return "".join([text async for text in engine.generate(prompt, length, temperature)])


def test_learned_weights_are_kept(example: types.SimpleNamespace, tmp_path: Path, capsys: Any) -> None:
    learned = example.model.train(2)
    file = example.model.save(learned, tmp_path / "new" / "folder")
    assert list(file.parent.iterdir()) == [file]
    capsys.readouterr()
    kept = example.model.load(file.parent)
    assert capsys.readouterr().out == ""
    assert kept.alphabet == learned.alphabet
    assert all(kept.state_dict()[name].equal(weights) for name, weights in learned.state_dict().items())


@pytest.mark.timeout(300)
def test_network_learns_to_write_words(example: types.SimpleNamespace, tmp_path: Path, capsys: Any) -> None:
    start = time.process_time()
    batch = example.model.Batch(example.model.load(tmp_path))
    assert time.process_time() - start < 60
    loss = re.search(r"^Training, step (\d+) of \1: loss (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert loss is not None
    assert float(loss[2]) < 1.6
    batch.add("The ", temperature=0.5)
    words = re.findall(r"[A-Za-z]+", "".join(batch.step()[0] for _ in range(3000)))
    known = set(re.findall(r"[A-Za-z]+", example.model.corpus()))
    assert sum(word in known for word in words) > 0.7 * len(words) > 200


def test_texts_written_together_equal_those_written_alone(engine: Any) -> None:
    requests = [("The ", 40), ("", 25), ("A class", 10), ("The " * 500, 40), ("\u00fcn\u0131c\u00f6d\u00e9", 30)]

    async def together() -> list[str]:
        return await asyncio.gather(*(written(engine, *request) for request in requests))

    alone = [asyncio.run(written(engine, *request)) for request in requests]
    assert asyncio.run(together()) == alone
    assert [len(text) for text in alone] == [length for _, length in requests]


def test_text_joins_and_leaves_while_another_is_written(engine: Any) -> None:
    async def overtake() -> None:
        long = engine.generate("The ", 4000, 1.0)
        first = await anext(long)
        assert len(await written(engine, "A ", 20)) == 20
        assert engine.active == 1
        rest = [text async for text in long]
        assert len(first) + sum(map(len, rest)) == 4000

    asyncio.run(overtake())
    assert engine.active == 0


def test_closing_a_text_stops_its_writing(engine: Any) -> None:
    async def close_one_of_two() -> str:
        closed = engine.generate("A ", 4000, 1.0)
        await anext(closed)
        other = asyncio.create_task(written(engine, "The ", 100))
        await anext(closed)
        assert engine.active == 2
        await closed.aclose()
        assert engine.active == 1
        return await other

    assert asyncio.run(close_one_of_two()) == asyncio.run(written(engine, "The ", 100))


def test_cancelling_the_reader_stops_the_writing(engine: Any) -> None:
    async def cancel() -> None:
        reader = asyncio.create_task(written(engine, "A ", 4000, 1.0))
        while not engine.active:
            await asyncio.sleep(0)
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
        assert engine.active == 0

    asyncio.run(cancel())


def test_slow_reader_gets_all_of_its_text_in_longer_pieces(engine: Any) -> None:
    async def read_slowly() -> list[str]:
        other = asyncio.create_task(written(engine, "A ", 300))
        pieces = []
        async for piece in engine.generate("The ", 300, 0.0):
            pieces.append(piece)
            for _ in range(10):
                await asyncio.sleep(0)
        await other
        return pieces

    pieces = asyncio.run(read_slowly())
    assert "".join(pieces) == asyncio.run(written(engine, "The ", 300))
    assert len(pieces) < 150


@pytest.mark.parametrize("length", [0, -1, 4097])
def test_lengths_out_of_range_are_refused(engine: Any, length: int) -> None:
    with pytest.raises(ValueError, match=f"A text of {length} characters is requested; request 1 to 4096"):
        asyncio.run(written(engine, "A ", length))


@pytest.mark.parametrize("temperature", [-0.1, 2.5, float("nan"), float("inf")])
def test_temperatures_out_of_range_are_refused(engine: Any, temperature: float) -> None:
    with pytest.raises(ValueError, match=f"The temperature is {temperature}; choose one from 0 to 2.0"):
        asyncio.run(written(engine, "A ", 10, temperature))


def test_failure_of_a_step_reaches_all_readers_of_its_texts(example: types.SimpleNamespace, engine: Any) -> None:
    broken = example.engine.Engine(example.model.Network("\nab"))
    alphabet, broken._network.alphabet = broken._network.alphabet, ""

    async def both(length: int) -> list[Any]:
        texts = (written(broken, prompt, length) for prompt in ("a", "b"))
        return await asyncio.gather(*texts, return_exceptions=True)

    assert [type(error) for error in asyncio.run(both(10))] == [IndexError, IndexError]
    assert broken.active == 0
    broken._network.alphabet = alphabet
    assert [len(text) for text in asyncio.run(both(10))] == [10, 10]


def test_server_responds_and_keeps_its_learned_weights(cache: Path) -> None:
    before = [(file.name, file.stat().st_mtime_ns) for file in cache.iterdir()]
    with running(EXAMPLE / "server.py") as process:
        url = line_with(process, r"grpc://(127\.0\.0\.1:\d+)")[1]
        alone = run(EXAMPLE / "client.py", "A class ", "--max-tokens", "50", "--grpc-url", url)
        together = run(EXAMPLE / "client.py", "A class ", "The ", "When ", "--max-tokens", "300", "--grpc-url", url)
    assert re.fullmatch(r"A class (.|\n){50}\n", alone)
    lines = together.splitlines()
    for number, prompt in enumerate(("A class", "The", "When"), 1):
        assert next(line for line in lines if line.startswith(f"{number} | ")).startswith(f"{number} | {prompt}")
    assert before == [(file.name, file.stat().st_mtime_ns) for file in cache.iterdir()]


def test_client_says_why_there_is_no_text(served: Triton) -> None:
    for options, reason in (
        (["--max-tokens", "0"], "ask for 1 to 4096"),
        (["--temperature", "3"], "choose one from 0 to 2.0"),
    ):
        url = f"127.0.0.1:{served.config.grpc_port}"
        with pytest.raises(AssertionError, match=reason):
            run(EXAMPLE / "client.py", "--grpc-url", url, *options)


def test_curl_line_of_the_readme_streams_text(served: Triton) -> None:
    (line,) = (
        command
        for block in blocks_of(EXAMPLE / "README.md")
        for command in block.commands
        if command.startswith("curl")
    )
    line = line.replace("127.0.0.1:8000", f"127.0.0.1:{served.config.http_port}")
    reply = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout
    events = [json.loads(each.removeprefix("data: ")) for each in reply.splitlines() if each]
    assert len(events) > 1
    assert len("".join(event["text"] for event in events)) == 100


def test_length_and_temperature_are_optional(example: types.SimpleNamespace, served: Triton) -> None:
    pieces = list(example.client.stream(f"127.0.0.1:{served.config.grpc_port}", ["A "]))
    assert len("".join(text for _, text in pieces)) == 200


def test_each_client_gets_its_own_text(example: types.SimpleNamespace, served: Triton, engine: Any) -> None:
    prompts = ["The ", "A class", "When", "If"] * 8
    texts = [""] * len(prompts)
    url = f"127.0.0.1:{served.config.grpc_port}"
    for position, text in example.client.stream(url, prompts, max_tokens=50, temperature=0):
        texts[position] += text
    assert texts[:4] * 8 == texts
    assert len(set(texts)) > 1
    assert {len(text) for text in texts} == {50}
    wait_until(lambda: engine.active == 0)


def test_short_text_overtakes_long_ones(
    example: types.SimpleNamespace, served: Triton, engine: Any, endless: int
) -> None:
    url = f"127.0.0.1:{served.config.grpc_port}"
    with contextlib.closing(example.client.stream(url, ["The "] * 8, max_tokens=endless)) as long:
        next(long)
        short = "".join(text for _, text in example.client.stream(url, ["A "], max_tokens=20))
        wait_until(lambda: engine.active == 8)
    assert len(short) == 20


def test_client_that_stops_reading_frees_its_slot(
    example: types.SimpleNamespace, served: Triton, engine: Any, endless: int
) -> None:
    pieces = example.client.stream(f"127.0.0.1:{served.config.grpc_port}", ["The "] * 8, max_tokens=endless)
    assert len(list(itertools.islice(pieces, 10))) == 10
    wait_until(lambda: engine.active == 8)
    pieces.close()
    wait_until(lambda: engine.active == 0)


def test_interrupted_client_frees_its_slot(served: Triton, engine: Any, endless: int) -> None:
    url = f"127.0.0.1:{served.config.grpc_port}"
    with running(EXAMPLE / "client.py", "A class ", "--grpc-url", url, "--max-tokens", str(endless)) as process:
        assert process.stdout is not None
        assert process.stdout.read(10).startswith("A class ")
        assert engine.active == 1
    wait_until(lambda: engine.active == 0)


def test_disconnected_http_client_frees_its_slot(served: Triton, engine: Any, endless: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.config.http_port}/v2/models/Writer/generate_stream",
        json.dumps({"prompt": "The ", "max_tokens": endless}).encode(),
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        assert response.readline().startswith(b"data: ")
        assert engine.active == 1
    wait_until(lambda: engine.active == 0)


@pytest.fixture(scope="module")
def executed(cache: Path) -> Any:
    """The notebook, with the outputs of its cells; an error in one of them is raised here."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=DEADLINE_S, kernel_name="python3").execute(cwd=str(EXAMPLE))
    return notebook


def printed_in(notebook: Any, name: str) -> str:
    (cell,) = (cell for cell in notebook.cells if cell.id == name)
    assert {output.name for output in cell.outputs if output.output_type == "stream"} == {"stdout"}
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def test_notebook_is_committed_without_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_notebook_shows_texts(executed: Any) -> None:
    assert re.fullmatch(r"A class (.|\n){400}\n", printed_in(executed, "stream"))
    assert {line[:4] for line in printed_in(executed, "together").splitlines()} == {"1 | ", "2 | ", "3 | "}
    assert printed_in(executed, "left") == "0 texts are being written\n"


def test_interrupt_in_the_notebook_cancels_the_text(cache: Path) -> None:
    manager, client = start_new_kernel(startup_timeout=DEADLINE_S, kernel_name="python3", cwd=str(EXAMPLE))

    def execute(code: str, watch: Callable[[Any], None] = lambda output: None) -> list[Any]:
        outputs: list[Any] = []

        def take(output: Any) -> None:
            outputs.append(output)
            watch(output)

        client.execute_interactive(code, timeout=DEADLINE_S, output_hook=take)
        return [each for each in outputs if each["msg_type"] not in ("status", "execute_input")]

    def interrupt(output: Any) -> None:
        if output["msg_type"] == "stream" and not interrupted:
            interrupted.append(output)
            manager.interrupt_kernel()

    interrupted: list[Any] = []
    try:
        cells = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
        for name in ("start", "model", "bind"):
            assert not [each for each in execute(cells[name]) if each["msg_type"] == "error"]
        assert "from client import show" in cells["stream"]
        execute(cells["stream"])
        assert "max_tokens=4000" in cells["interrupt"]
        execute("import engine as limits\nlimits.LONGEST_TEXT = 10**9")
        outputs = execute(cells["interrupt"].replace("4000", "10**9"), interrupt)
        assert outputs[-1]["content"]["ename"] == "KeyboardInterrupt"
        wait_until(lambda: "0 texts" in execute(cells["left"])[0]["content"]["text"])
        assert not [each for each in execute(cells["stop"]) if each["msg_type"] == "error"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("file", [*sorted(EXAMPLE.glob("*.py")), NOTEBOOK], ids=lambda path: path.name)
def test_readme_of_the_example_names_each_file(file: Path) -> None:
    assert f"({file.name})" in (EXAMPLE / "README.md").read_text()
