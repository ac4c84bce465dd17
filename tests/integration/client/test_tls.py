"""Encrypted connections: Triton's own over gRPC, and those to a proxy over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import shutil
import ssl
import subprocess
import threading
import time

import pytest
from client_kinds import STREAM_KINDS, every_kind, known, open_client, open_triton
from peers import listening, silent
from serving import HOST, bind_floats

from pytriton.cli.main import main
from pytriton.client import Failure, PyTritonClientInferenceServerError, PyTritonClientTimeoutError, TLSConfig
from pytriton.model_config import ModelConfig

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A folder with certificates of an authority, a server, a client, and another authority."""
    folder = tmp_path_factory.mktemp("certificates")

    def run(*command):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)

    for authority in ("ca", "other"):
        new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={authority}"]
        run(*new, "-keyout", f"{authority}.key", "-out", f"{authority}.pem")
    (folder / "names").write_text(f"subjectAltName=DNS:localhost,IP:{HOST}\n")
    for subject in ("server", "client"):
        new = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject}"]
        run(*new, "-keyout", f"{subject}.key", "-out", f"{subject}.csr")
        sign = ["x509", "-req", "-in", f"{subject}.csr", "-days", "2", "-extfile", "names"]
        run(*sign, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{subject}.pem")
    return folder


@contextlib.contextmanager
def serving(**settings):
    """A server with a model for each kind of client."""
    with open_triton(**settings) as triton:
        bind_floats(triton, "once", echo)
        bind_floats(triton, "stream", echo, config=ModelConfig(decoupled=True))
        triton.run()
        yield triton


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@contextlib.contextmanager
def https_proxy_of(port, context):
    """A proxy that speaks TLS, in front of a server that does not; yields its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def response(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            upstream = http.client.HTTPConnection(HOST, port, timeout=30)
            upstream.request(self.command, self.path.removeprefix("/behind"), body, dict(self.headers))
            received = upstream.getresponse()
            content = received.read()
            self.send_response(received.status)
            for name, value in received.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            upstream.close()

        do_GET = do_POST = response  # noqa: N815  (names that http.server requires)

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def finish_request(self, request, client_address):
            # In the connection's own thread: a client that opens a connection and sends nothing delays no other.
            request.settimeout(30)
            with context.wrap_socket(request, server_side=True) as encrypted:
                super().finish_request(encrypted, client_address)

        def handle_error(self, *_):
            pass

    with Server((HOST, 0), Handler) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy.server_address[1]
        proxy.shutdown()


@pytest.fixture(scope="module")
def plain():
    """A server that does not speak TLS."""
    with serving() as triton:
        yield triton


@pytest.fixture(scope="module")
def https_url(plain, certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with https_proxy_of(plain.config.http_port, context) as port:
        yield f"https://localhost:{port}"


@pytest.fixture(scope="module")
def mutual_https_url(plain, certificates):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with https_proxy_of(plain.config.http_port, context) as port:
        yield f"https://localhost:{port}"


@pytest.fixture(scope="module")
def grpcs_url(certificates):
    files = {"grpc_server_cert": certificates / "server.pem", "grpc_server_key": certificates / "server.key"}
    with serving(grpc_use_ssl=True, **files) as triton:
        yield f"grpcs://localhost:{triton.config.grpc_port}"


@pytest.fixture(scope="module")
def mutual_grpcs_url(certificates):
    files = {
        "grpc_server_cert": certificates / "server.pem",
        "grpc_server_key": certificates / "server.key",
        "grpc_root_cert": certificates / "ca.pem",
    }
    with serving(grpc_use_ssl_mutual=True, **files) as triton:
        yield f"grpcs://localhost:{triton.config.grpc_port}"


@pytest.fixture
def secure(request, protocol):
    """The URL of a server that speaks TLS."""
    return request.getfixturevalue(f"{protocol}s_url")


@pytest.fixture
def mutual(request, protocol):
    """The URL of a server that requires the client's certificate."""
    return request.getfixturevalue(f"mutual_{protocol}s_url")


def client_of(kind, url, **arguments):
    return open_client(kind, url, "stream" if kind in STREAM_KINDS else "once", **arguments)


@every_kind
def test_a_server_with_a_certificate_that_is_trusted(kind, secure, certificates):
    with client_of(kind, secure, tls=TLSConfig(root_certificates=certificates / "ca.pem")) as client:
        assert client.infer_sample([1])["y"] == [1]


@every_kind
@pytest.mark.parametrize("authority", [None, "other.pem"])
def test_a_server_with_a_certificate_that_is_not_trusted(kind, secure, certificates, authority):
    tls = TLSConfig(root_certificates=authority and certificates / authority)
    with client_of(kind, secure, tls=tls, ensure_model_is_ready=False) as client:
        with pytest.raises(PyTritonClientInferenceServerError, match=r"(?i)certificate|handshake|ssl") as caught:
            client.infer_sample([1])
        assert caught.value.failure is Failure.UNREACHABLE
        with pytest.raises(PyTritonClientTimeoutError, match="took longer than"):
            client.wait_for_model(0.2)


@every_kind
def test_a_certificate_of_the_client(kind, mutual, certificates):
    trusted = TLSConfig(
        root_certificates=str(certificates / "ca.pem"),
        certificate_chain=certificates / "client.pem",
        private_key=certificates / "client.key",
    )
    with client_of(kind, mutual, tls=trusted) as client:
        assert client.infer_sample([1])["y"] == [1]
    unknown = TLSConfig(root_certificates=certificates / "ca.pem")
    with (
        client_of(kind, mutual, tls=unknown, ensure_model_is_ready=False) as client,
        pytest.raises(PyTritonClientInferenceServerError),
    ):
        client.infer_sample([1])


@every_kind
def test_a_server_that_does_not_respond(kind, protocol, certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.set_alpn_protocols(["h2"] if protocol == "grpc" else ["http/1.1"])

    def behave(connection):
        with context.wrap_socket(connection, server_side=True) as encrypted:
            silent(encrypted)

    with (
        listening(behave) as port,
        client_of(
            kind,
            f"{protocol}s://localhost:{port}",
            tls=TLSConfig(root_certificates=certificates / "ca.pem"),
            **known(kind),
        ) as client,
    ):
        started = time.monotonic()
        with pytest.raises(PyTritonClientTimeoutError, match=r"within 0\.2 s"):
            client.infer_sample([1], timeout_s=0.2)
        assert time.monotonic() - started < 5


def test_https_without_verification(kind, https_url):
    with open_client(kind, f"{https_url}/behind", "once", tls=TLSConfig(verify=False)) as client:
        assert client.infer_sample([1])["y"] == [1]


def test_the_command_line_accepts_the_authority(secure, certificates, capsys):
    for words in (["infer", secure, "once", "x=1"], ["models", secure]):
        assert main([*words, "--ca", str(certificates / "ca.pem")]) == 0
        assert main([*words, "--ca", str(certificates / "other.pem"), "--timeout", "1"]) == 1
        assert "No server can be reached" in capsys.readouterr().err


@every_kind
def test_a_file_that_holds_no_certificate(kind, secure, tmp_path):
    (tmp_path / "none.pem").write_text("no certificate")
    with (
        client_of(
            kind, secure, tls=TLSConfig(root_certificates=tmp_path / "none.pem"), ensure_model_is_ready=False
        ) as client,
        pytest.raises(PyTritonClientInferenceServerError) as caught,
    ):
        client.infer_sample([1])
    assert caught.value.failure is Failure.UNREACHABLE


@every_kind
def test_plain_http_to_a_port_that_speaks_tls(kind, secure):
    insecure_url = secure.replace("https://", "http://").replace("grpcs://", "grpc://")
    with (
        client_of(kind, insecure_url, ensure_model_is_ready=False) as client,
        pytest.raises(PyTritonClientInferenceServerError),
    ):
        client.infer_sample([1])
