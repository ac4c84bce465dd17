"""Misbehaving peers: sockets that break the protocol, and a proxy that cuts connections."""

from __future__ import annotations

import contextlib
import socket
import threading

HOST = "127.0.0.1"
HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
# An HTTP/2 server's first frame: SETTINGS, with nothing in it.
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@contextlib.contextmanager
def listening(behave):
    """A port whose connections each have a thread that calls ``behave(connection)``; yields its number."""
    connections = []
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connections.append(connection)
                    threading.Thread(target=serve, args=(connection,), daemon=True).start()

        def serve(connection):
            with contextlib.suppress(OSError), connection:
                behave(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextlib.contextmanager
def powerless():
    """A port that acknowledges nothing, like those of a host without power; yields its number."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        with contextlib.suppress(TimeoutError):
            while True:  # until its queue is full
                sockets.enter_context(socket.create_connection(listener.getsockname(), timeout=0.2))
        yield listener.getsockname()[1]


def silent(connection):
    """Reads, and never responds."""
    while connection.recv(65536):
        pass


def refusing(connection):
    """Hangs up at once."""


def closing(connection):
    """Reads a request, and hangs up."""
    connection.recv(65536)


def dribbling(connection):
    """Sends a response so slowly that only the timeout of the whole request passes."""
    pause = threading.Event()
    if connection.recv(65536).startswith(b"PRI "):
        while not pause.wait(0.02):
            connection.sendall(SETTINGS)
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b" " * 1000:
        connection.sendall(bytes([byte]))
        pause.wait(0.02)


def is_last(request):
    """Whether the connection is to be closed after the response to a request."""
    return b"connection: close" in request.lower()


def speaking_html(status):
    """Responds to each request like a proxy whose server is down."""

    def behave(connection):
        while request := connection.recv(65536):
            head = f"HTTP/1.1 {status} Gateway\r\nContent-Type: text/html\r\nContent-Length: {len(HTML)}\r\n\r\n"
            connection.sendall(head.encode() + HTML)
            if is_last(request):
                return

    return behave


def hanging_up_in_mid_response(connection):
    """Begins a response, of HTTP or of HTTP/2, and hangs up."""
    if connection.recv(65536).startswith(b"PRI "):
        connection.sendall(SETTINGS)
        connection.recv(65536)
    else:
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"name":')


@contextlib.contextmanager
def full_backlog():
    """A port where connecting neither succeeds nor fails; yields its number."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((HOST, port))
        yield port


class Proxy:
    """Forwards the data of a client and a server, until its mode is changed.

    Args:
        target: The server's port.
    """

    def __init__(self, target):
        self._target = target
        self._response_limit = None
        self._stand_in = None
        self._connections = []

    def __call__(self, connection):
        self._connections.append(connection)
        if self._stand_in is not None:
            self._stand_in(connection)
            return
        with socket.create_connection((HOST, self._target)) as server:
            self._connections.append(server)
            upward = threading.Thread(target=self._pass_on, args=(connection, server), daemon=True)
            upward.start()
            self._pass_on(server, connection, is_response=True)
            upward.join()

    def cut_after(self, count):
        """Cuts a connection after as many further bytes of the server's responses."""
        self._response_limit = count

    def stand_in(self, behave):
        """Speaks for the server from now on: each connection is left to ``behave(connection)``; None ends that."""
        self._stand_in = behave
        self.cut()

    def cut(self):
        """Cuts the connections that there are."""
        while self._connections:
            self._shut(self._connections.pop())

    def _pass_on(self, source, sink, is_response=False):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                limit = self._response_limit if is_response else None
                if limit is not None and len(data) >= limit:
                    self._response_limit = None
                    sink.sendall(data[:limit])
                    break
                if limit is not None:
                    self._response_limit = limit - len(data)
                sink.sendall(data)
        self._shut(source, sink)

    def _shut(self, *connections):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy_of(port):
    """A proxy in front of a server's port; yields it and its own port."""
    proxy = Proxy(port)
    with listening(proxy) as own_port:
        yield proxy, own_port
