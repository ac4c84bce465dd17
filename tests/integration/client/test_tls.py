"""Encrypted connections: Triton's own over gRPC, and those to a proxy over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import shutil
import ssl
import subprocess
import threading

import pytest
from asking import asking, open_triton
from serving import HOST, bind_floats

from pytriton.client import Failure, PyTritonClientInferenceServerError, PyTritonClientTimeoutError, TLSConfig

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


def bound(triton):
    bind_floats(triton, "floats", lambda requests: [{"y": each["x"]} for each in requests])
    triton.run()
    return triton


@contextlib.contextmanager
def https_proxy_of(port, context):
    """A proxy that speaks TLS, in front of a server that does not; yields its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
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

        do_GET = do_POST = answer  # noqa: N815  (names that http.server asks for)

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_):
            pass

    with Server((HOST, 0), Handler) as proxy:
        proxy.socket = context.wrap_socket(proxy.socket, server_side=True)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy.server_address[1]
        proxy.shutdown()


@pytest.fixture(scope="module", params=["https", "grpcs"])
def secure(request, certificates):
    """The URL of a server that speaks TLS."""
    if request.param == "grpcs":
        settings = {"grpc_server_cert": certificates / "server.pem", "grpc_server_key": certificates / "server.key"}
        with open_triton(grpc_use_ssl=True, **settings) as triton:
            yield f"grpcs://localhost:{bound(triton).config.grpc_port}"
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        with open_triton() as triton, https_proxy_of(bound(triton).config.http_port, context) as port:
            yield f"https://localhost:{port}"


@pytest.fixture(scope="module", params=["https", "grpcs"])
def mutual(request, certificates):
    """The URL of a server that asks for the client's certificate."""
    if request.param == "grpcs":
        settings = {
            "grpc_server_cert": certificates / "server.pem",
            "grpc_server_key": certificates / "server.key",
            "grpc_root_cert": certificates / "ca.pem",
        }
        with open_triton(grpc_use_ssl_mutual=True, **settings) as triton:
            yield f"grpcs://localhost:{bound(triton).config.grpc_port}"
    else:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        with open_triton() as triton, https_proxy_of(bound(triton).config.http_port, context) as port:
            yield f"https://localhost:{port}"


def test_a_server_with_a_certificate_that_is_trusted(kind, secure, certificates):
    with asking(kind, secure, "floats", tls=TLSConfig(root_certificates=certificates / "ca.pem")) as client:
        assert client.infer_sample([1])["y"] == [1]


@pytest.mark.parametrize("authority", [None, "other.pem"])
def test_a_server_with_a_certificate_that_is_not_trusted(kind, secure, certificates, authority):
    tls = TLSConfig(root_certificates=authority and certificates / authority)
    with (
        asking(kind, secure, "floats", tls=tls) as client,
        pytest.raises(PyTritonClientTimeoutError, match=r"(?i)certificate|handshake|ssl"),
    ):
        client.wait_for_model(0.5)
    with (
        asking(kind, secure, "floats", tls=tls, ensure_model_is_ready=False) as client,
        pytest.raises(PyTritonClientInferenceServerError) as caught,
    ):
        client.infer_sample([1])
    assert caught.value.failure is Failure.UNREACHABLE


def test_a_certificate_of_the_client(kind, mutual, certificates):
    trusted = TLSConfig(
        root_certificates=str(certificates / "ca.pem"),
        certificate_chain=certificates / "client.pem",
        private_key=certificates / "client.key",
    )
    with asking(kind, mutual, "floats", tls=trusted) as client:
        assert client.infer_sample([1])["y"] == [1]
    unknown = TLSConfig(root_certificates=certificates / "ca.pem")
    with (
        asking(kind, mutual, "floats", tls=unknown, ensure_model_is_ready=False) as client,
        pytest.raises(PyTritonClientInferenceServerError),
    ):
        client.infer_sample([1])


def test_https_without_verification(kind, certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with (
        open_triton() as triton,
        https_proxy_of(bound(triton).config.http_port, context) as port,
        asking(kind, f"https://{HOST}:{port}/behind", "floats", tls=TLSConfig(verify=False)) as client,
    ):
        assert client.infer_sample([1])["y"] == [1]


def test_a_file_that_holds_no_certificate(kind, secure, tmp_path):
    (tmp_path / "none.pem").write_text("no certificate")
    with (
        asking(
            kind, secure, "floats", tls=TLSConfig(root_certificates=tmp_path / "none.pem"), ensure_model_is_ready=False
        ) as client,
        pytest.raises(PyTritonClientInferenceServerError) as caught,
    ):
        client.infer_sample([1])
    assert caught.value.failure is Failure.UNREACHABLE


def test_plain_http_to_a_port_that_speaks_tls(kind, secure):
    plain = secure.replace("https://", "http://").replace("grpcs://", "grpc://")
    with (
        asking(kind, plain, "floats", ensure_model_is_ready=False) as client,
        pytest.raises(PyTritonClientInferenceServerError),
    ):
        client.infer_sample([1])
