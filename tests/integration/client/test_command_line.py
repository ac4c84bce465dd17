"""``pytriton infer`` and ``pytriton models``."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from client_kinds import PROTOCOLS, open_triton, url_of
from peers import HOST, listening, proxy_of, silent
from serving import FLOATS_IN, FLOATS_OUT, NO_BATCHING, Background, Script, bind_floats, running_triton

from pytriton.cli.main import main
from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor


def double(requests):
    return [{"y": 2 * request["x"]} for request in requests]


@pytest.fixture
def pytriton(capsys):
    """Runs the command line in this process; returns the status, and what was printed."""

    def run(*words):
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_a_batch_and_a_sample(triton, name, url, pytriton):
    bind_floats(triton, name, double)
    assert pytriton("infer", url, name, "x=[[1,2],[3,4]]") == (0, "y: FP32 (2, 2)\n[[2. 4.]\n [6. 8.]]\n", "")
    assert pytriton("infer", url, name, "x=[1, 2]") == (0, "y: FP32 (2,)\n[2. 4.]\n", "")
    assert pytriton("infer", url, name, "x=3", "--json") == (0, '{"y": [6.0]}\n', "")
    assert pytriton("infer", url, "--timeout", "30", name, "--json", "x=3") == (0, '{"y": [6.0]}\n', "")


def test_a_model_without_batching(triton, name, url, pytriton):
    bind_floats(triton, name, double, config=NO_BATCHING)
    assert pytriton("infer", url, name, "x=[1, 2]", "--json") == (0, '{"y": [2.0, 4.0]}\n', "")


def test_a_model_without_required_inputs(triton, name, url, pytriton):
    @batch
    def pick(n=None):
        return {"y": np.array([[7.0]], np.float32) if n is None else n}

    triton.bind(name, pick, [Tensor((1,), np.float32, "n", optional=True)], FLOATS_OUT)
    assert pytriton("infer", url, name, "--json") == (0, '{"y": [7.0]}\n', "")


def test_arrays_in_files(triton, name, url, pytriton, tmp_path):
    bind_floats(triton, name, double)
    values = np.float32([[1, 2], [3, 4]])
    np.save(tmp_path / "x.npy", values)
    for saved in ("y.npy", "y.npz"):
        assert pytriton("infer", url, name, f"x=@{tmp_path / 'x.npy'}", "--save", tmp_path / saved) == (0, "", "")
    assert (np.load(tmp_path / "y.npy") == 2 * values).all()
    assert (np.load(tmp_path / "y.npz")["y"] == 2 * values).all()


def test_text(triton, name, url, pytriton, tmp_path):
    @batch
    def greet(who):
        return {"greeting": np.array([[b"Hello " + each[0]] for each in who])}

    triton.bind(name, greet, [Tensor((1,), bytes, "who")], [Tensor((1,), bytes, "greeting")])
    assert pytriton("infer", url, name, "who=Grüße", "--json") == (0, '{"greeting": ["Hello Gr\\u00fc\\u00dfe"]}\n', "")
    assert pytriton("infer", url, name, 'who=[["a"],["b"]]')[0] == 0
    assert pytriton("infer", url, name, "who=a", "--save", tmp_path / "g.npy") == (0, "", "")
    assert np.load(tmp_path / "g.npy").tolist() == [b"Hello a"]


def test_the_content_of_a_file(triton, name, url, pytriton, tmp_path):
    @batch
    def measure(content):
        return {"length": np.array([[len(each[0])] for each in content])}

    triton.bind(name, measure, [Tensor((1,), bytes, "content")], [Tensor((1,), np.int64, "length")])
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff\0\0")
    assert pytriton("infer", url, name, f"content=@{tmp_path / 'image.png'}", "--json") == (0, '{"length": [7]}\n', "")
    np.save(tmp_path / "text.npy", np.array([[b"abc"], [b"d"]]))
    printed = pytriton("infer", url, name, f"content=@{tmp_path / 'text.npy'}", "--json")
    assert printed == (0, '{"length": [[3], [1]]}\n', "")
    np.save(tmp_path / "number.npy", np.float32([1]))
    size = (tmp_path / "number.npy").stat().st_size
    printed = pytriton("infer", url, name, f"content=@{tmp_path / 'number.npy'}", "--json")
    assert printed[1] == f'{{"length": [{size}]}}\n'
    status, _, error = pytriton("infer", url, name, "content=@/none")
    assert (status, "'/none' cannot be read: No such file" in error) == (1, True)


def test_parameters(triton, name, url, pytriton):
    seen = []

    def note(requests):
        seen.append(requests[0].parameters)
        return double(requests)

    bind_floats(triton, name, note)
    words = ["--parameter", "number=3", "--parameter", "text=a b", "--parameter", "flag=true"]
    assert pytriton("infer", url, name, "x=1", *words)[0] == 0
    assert {key: seen[0][key] for key in ("number", "text", "flag")} == {"number": 3, "text": "a b", "flag": True}


def test_a_decoupled_model(triton, name, pytriton, tmp_path):
    bind_floats(triton, name, double, config=ModelConfig(decoupled=True))
    url = url_of(triton, "grpc")
    assert pytriton("infer", url, name, "x=[[1],[2]]", "--json") == (0, '{"y": [[2.0], [4.0]]}\n', "")
    assert pytriton("infer", url, name, "x=1", "--save", tmp_path / "y.npy") == (0, "", "")
    assert np.load(tmp_path / "y-1.npy") == [2]
    assert pytriton("infer", url_of(triton, "http"), name, "x=1", "--json") == (0, '{"y": [2.0]}\n', "")


def test_a_decoupled_model_behind_a_proxy_of_http_alone(triton, name, pytriton):
    bind_floats(triton, name, double, config=ModelConfig(decoupled=True))
    with proxy_of(triton.config.http_port) as (_, port):
        status, _, error = pytriton("infer", f"http://{HOST}:{port}", name, "x=1")
    assert (status, "use grpc://" in error) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x"], "'x' is not a tensor; write name=@array.npy"),
        (["=1"], "'=1' is not a tensor"),
        (["z=1"], "There is no input 'z'"),
        (["x=1", "timeout=3"], "There is no input 'timeout' (did you mean the option timeout_s?)"),
        (["x=[1", "--timeout", "5"], "holds '[1', which is text, not a number"),
        (["x=[[1,2],[3]]"], "cannot be made an array"),
        (["x=1", "x=2"], "An input is given twice"),
        (["x=@none.npy"], "'none.npy' cannot be read: No such file"),
        (["x=@" + __file__], "holds no array"),
        (["x=1", "localhost:8000"], "'localhost:8000' is not a tensor"),
        (["x=1", "--parameter", "warm"], "'warm' is not a parameter; write --parameter name=value"),
        (["x=1", "--parameter", "priority=1"], "is a reserved parameter"),
        (["x=1", "--save", "y.txt"], "cannot be saved to 'y.txt'"),
        (["x=1", "--save", "/none/y.npy"], "'/none/y.npy' cannot be written: No such file"),
    ],
)
def test_mistakes_are_reported_in_one_line(triton, name, pytriton, words, message):
    bind_floats(triton, name, double)
    status, out, error = pytriton("infer", url_of(triton, "http"), name, *words)
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert error.startswith("pytriton: ")
    assert any(each in error for each in message.split("|")), error


def test_several_outputs_cannot_be_saved_as_one_array(triton, name, pytriton, tmp_path):
    outputs = [*FLOATS_OUT, Tensor((-1,), np.float32, "z")]
    triton.bind(name, lambda requests: [{"y": r["x"], "z": r["x"]} for r in requests], FLOATS_IN, outputs)
    status, _, error = pytriton("infer", url_of(triton, "http"), name, "x=1", "--save", tmp_path / "y.npy")
    assert (status, "2 outputs cannot be saved" in error) == (1, True)
    assert pytriton("infer", url_of(triton, "http"), name, "x=1", "--save", tmp_path / "y.npz")[0] == 0


def test_text_that_looks_like_a_number(triton, name, url, pytriton):
    @batch
    def repeat(text):
        return {"same": text}

    triton.bind(name, repeat, [Tensor((1,), bytes, "text")], [Tensor((1,), bytes, "same")])
    for text in ("123", "true", "null", '{"a": 1}', "[1, 2]", '["a", 1]', "[]"):
        status, out, error = pytriton("infer", url, name, f"text={text}", "--json")
        assert (status, error) == (0, "")
        assert json.loads(out) == {"same": [text]}
    for text in ('"123"', '["123"]', '[["123"]]'):
        assert "123" in pytriton("infer", url, name, f"text={text}", "--json")[1]
    assert "An input is given twice" in pytriton("infer", url, name, "text=hello", "text=123")[2]


def test_without_a_timeout_it_does_not_wait_for_a_server(pytriton):
    for protocol in PROTOCOLS:
        started = time.monotonic()
        status, _, error = pytriton("infer", f"{protocol}://localhost:1", "any", "x=1")
        assert time.monotonic() - started < 5
        assert (status, f"No server can be reached at {protocol}://localhost:1" in error) == (1, True)
        assert "with --timeout, the client waits for a server that starts later." in error
        assert "init_timeout_s" not in error


def test_with_a_timeout_it_waits_for_a_server(pytriton, name):
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        ports = {"http_port": one.getsockname()[1], "grpc_port": other.getsockname()[1]}
    requested = Background(lambda: pytriton("infer", f"{HOST}:{ports['http_port']}", name, "x=1", "--timeout", "60"))
    with open_triton(**ports) as triton:
        bind_floats(triton, name, double)
        triton.run()
        assert requested.finish(60).result[:2] == (0, "y: FP32 (1,)\n[2.]\n")


@pytest.mark.parametrize("timeout", ["0", "-1", "nan"])
@pytest.mark.parametrize("command", ["infer", "models"])
def test_an_invalid_timeout(command, timeout, pytriton):
    words = [command, "localhost:1", *(["any", "x=1"] if command == "infer" else []), "--timeout", timeout]
    status, _, error = pytriton(*words)
    assert status == 1, error
    assert "--timeout is" in error


def test_a_value_without_a_name(pytriton):
    status, _, error = pytriton("infer", "Double", "[1, 2]")
    assert (status, "write NAME='[1, 2]'" in error) == (1, True)


def test_no_server_is_running(pytriton):
    for words in (["infer", "localhost:1", "any", "x=1", "--timeout", "0.2"], ["models", "localhost:1"]):
        status, _, error = pytriton(*words)
        assert (status, "No server can be reached at http://localhost:1" in error) == (1, True)
    assert pytriton("models", "ftp://localhost")[0] == 1


def test_what_is_served(url, pytriton, name, triton):
    bind_floats(triton, name, double)
    text = triton.bind(
        f"{name}_text",
        lambda requests: requests,
        [Tensor((2,), bytes, "a"), Tensor((1,), np.int8, "b", optional=True)],
        [Tensor((-1, 3), np.int64, "c")],
        config=ModelConfig(batching=False, decoupled=True),
    )
    assert text is None
    pytriton("infer", url, name, "x=[[1],[2]]")
    status, out, _ = pytriton("models", url)
    assert status == 0
    lines = out.splitlines()
    start = lines.index(f"{name} version 1: READY")
    assert lines[start + 1 : start + 4] == [
        "  takes   'x': FP32 (-1,) (batches of up to 4)",
        "  gives   'y': FP32 (-1,)",
        "  counts  2 inferences, 1 executions, 0 failed",
    ]
    start = lines.index(f"{name}_text version 1: READY")
    assert lines[start + 1 : start + 3] == [
        "  takes   'a': BYTES (2,); 'b': INT8 (1,), optional (no batches)",
        "  gives   'c': INT64 (-1, 3) (any number of times)",
    ]
    models = {model["name"]: model for model in json.loads(pytriton("models", url, "--json")[1])}
    assert models[name]["counts"] == {"inferences": 2, "executions": 1, "failed": 0}
    assert models[name]["inputs"] == ["'x': FP32 (-1,)"]


@pytest.mark.parametrize("command", ["infer", "models"])
def test_another_port(triton, name, pytriton, command):
    bind_floats(triton, name, double)
    words = [name, "x=1"] if command == "infer" else []
    ports = {
        "is a port of gRPC; use grpc://": triton.config.grpc_port,
        "is a port for metrics": triton.config.metrics_port,
    }
    for message, port in ports.items():
        status, _, error = pytriton(command, f"{HOST}:{port}", *words)
        assert (status, message in error) == (1, True), error


def test_no_models(pytriton):
    with open_triton() as triton:
        triton.run()
        for protocol in PROTOCOLS:
            url = url_of(triton, protocol)
            assert pytriton("models", url) == (0, f"The server at {url} has no models.\n", "")


def test_a_model_that_is_not_ready(triton, name, url, pytriton):
    bind_floats(triton, name, double)
    with ModelClient(url, name) as client:
        client.unload_model()
    out = pytriton("models", url)[1]
    assert f"{name} version 1: UNAVAILABLE" in out or f"{name} version 1: UNLOADING" in out


@pytest.mark.parametrize(
    "words", [[], ["infer"], ["models", "localhost", "localhost"], ["serves", "localhost"]], ids=repr
)
def test_missing_and_unknown_arguments(words, capsys):
    with pytest.raises(SystemExit) as exited:
        main(words)
    assert exited.value.code == 2
    assert "usage: pytriton" in capsys.readouterr().err


PROGRAM = pathlib.Path(sys.executable).with_name("pytriton")


@pytest.mark.parametrize("command", [[sys.executable, "-m", "pytriton"], [PROGRAM]], ids=["module", "program"])
def test_the_program(triton, name, command):
    bind_floats(triton, name, double)

    def run(*words):
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=False)

    requested = run("infer", url_of(triton, "http"), name, "x=[1]")
    assert (requested.returncode, requested.stdout) == (0, "y: FP32 (1,)\n[2.]\n")
    assert run("--version").stdout.startswith("pytriton ")


def start(*words):
    return subprocess.Popen([PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_interrupt_ends_it():
    requested = threading.Event()

    def behave(connection):
        requested.set()
        silent(connection)

    with listening(behave) as port, start("infer", f"{HOST}:{port}", "any", "x=1") as process:
        assert requested.wait(30)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in errors


def test_it_exits_when_its_output_is_closed(triton, name):
    bind_floats(triton, name, double)
    with start("models", url_of(triton, "http")) as process:
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr.read() == ""


@pytest.fixture
def own_servers(own_home):
    """Runs servers that have a model and save their tokens; no other servers are found."""
    with contextlib.ExitStack() as stack:

        def run():
            triton = stack.enter_context(running_triton())
            bind_floats(triton, "double", double)
            triton.run()
            return triton

        yield run


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_of_the_same_user_is_found_with_its_token(own_servers, pytriton, protocol):
    triton = own_servers()
    assert pytriton("infer", "double", "x=[1, 2]") == (0, "y: FP32 (2,)\n[2. 4.]\n", "")
    for words in ([], [url_of(triton, protocol)]):
        status, out, error = pytriton("models", *words)
        assert (status, error) == (0, "")
        assert out.splitlines()[0] == "double version 1: READY"
        assert "counts  1 inferences" in out


def test_a_given_token_takes_precedence(own_servers, pytriton, monkeypatch):
    own_servers()
    assert "--token" in pytriton("models", "--token", "wrong")[2]


def test_one_of_several_servers_must_be_chosen(own_servers, pytriton):
    ports = [own_servers().config.http_port for _ in range(2)]
    status, _, error = pytriton("infer", "double", "x=1")
    assert status == 1
    assert error.startswith("pytriton: You run 2 servers: localhost:")
    assert all(f"localhost:{port}" in error for port in ports)
    for port in ports:
        assert pytriton("models", f"localhost:{port}")[0] == 0


def test_a_server_that_has_stopped_is_not_found(own_servers, pytriton):
    stopped, runs = own_servers(), own_servers()
    stopped.stop()
    assert pytriton("models")[0] == 0
    runs.stop()
    assert "http://localhost:8000" in pytriton("infer", "double", "x=1", "--timeout", "0.2")[2]


def test_only_the_owner_can_read_the_token(own_servers, own_home):
    own_servers()
    (path,) = own_home.glob("*/server.json")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_server_that_was_killed_is_not_found(tmp_path, monkeypatch, pytriton):
    code = (
        "from pytriton.triton import Triton\n"
        "triton = Triton()\ntriton.run()\nprint(triton.config.http_port, flush=True)\ninput()"
    )
    with Script(tmp_path, code) as script:
        monkeypatch.setenv("PYTRITON_HOME", str(script.home))
        port = script.line()
        assert pytriton("models") == (0, f"The server at http://127.0.0.1:{port} has no models.\n", "")
        script.process.kill()
        script.process.wait()
        assert "http://localhost:8000" in pytriton("infer", "double", "x=1", "--timeout", "0.2")[2]
