"""The applications of `serve_fastapi.py` under the names by which uvicorn's workers import them."""

from functools import partial

from serve_fastapi import make_app
from workloads import NAMES

for _name in NAMES:
    globals()[_name] = partial(make_app, _name)
