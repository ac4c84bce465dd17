"""The responses of a stream that wait while the gateway encodes earlier ones."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.gateway import GatewayConfig
from pytriton.gateway.errors import RequestError
from pytriton.gateway.remote import RemoteReply
from pytriton.gateway.streams import check_backlog

LARGE = RemoteReply({"y": np.empty(100 << 20, np.uint8)}, "Flood", 1, {})
LIMIT = GatewayConfig().max_stream_backlog


def test_a_model_may_be_faster_than_the_gateway_encodes():
    check_backlog([LARGE] * 2, LIMIT)


def test_its_responses_do_not_fill_the_memory():
    with pytest.raises(RequestError, match="max_stream_backlog"):
        check_backlog([LARGE] * 3, LIMIT)


def test_a_single_response_may_have_any_size():
    check_backlog([LARGE], limit=1)
