"""Requests for whether a server is alive or ready."""

from __future__ import annotations

import http.client

from serving import HOST


def get(port, path, timeout_s=10):
    """The status of a GET request; None if there is no server."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
