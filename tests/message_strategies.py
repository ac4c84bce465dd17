"""What messages consist of, for hypothesis."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from pytriton.proxy.wire.registration import AdmissionMessage, ExecutionMode

LEAST, MOST = -(2**63), 2**63 - 1

integers = st.one_of(st.integers(LEAST, MOST), st.sampled_from([0, 1, -1, LEAST, MOST]))
# Any bytes may come from C++, and Python's text holds them all.
texts = st.one_of(
    st.text(),
    st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.sampled_from(["", "\0", "a\0b\0", "é", "\N{GRINNING FACE}", "x" * 5000]),
)
doubles = integers.map(lambda bits: struct.unpack("<d", struct.pack("<q", bits))[0])
parameters = st.dictionaries(texts, st.one_of(texts, integers, st.booleans(), doubles, st.floats()), max_size=5)
admissions = st.builds(
    AdmissionMessage,
    texts,
    integers,
    st.booleans(),
    st.booleans(),
    st.sampled_from(ExecutionMode),
    integers,
    st.lists(texts, max_size=5),
    st.lists(texts, max_size=5),
)
