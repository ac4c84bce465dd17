"""The service of `real_bentoml.py`, which BentoML's processes import: adaptive batches where the model takes them."""

import base64

import bentoml
from real_servers import PATH, TIMEOUT_S, model, workers


@bentoml.service(
    workers=workers(),
    http={"host": "127.0.0.1"},
    logging={"access": {"enabled": False}},
    traffic={"timeout": TIMEOUT_S},
)
class Service:
    """The model."""

    def __init__(self) -> None:
        self.model = model()
        self.function = self.model.load()

    if model().max_batch_size > 1:

        @bentoml.api(route=PATH, batchable=True, max_batch_size=model().max_batch_size, max_latency_ms=TIMEOUT_S * 1000)
        def infer(self, x: list[str]) -> list[str]:
            """Compute a batch."""
            outputs = self.function(self.model.stack([self.model.decode(base64.b64decode(each)) for each in x]))
            return [base64.b64encode(self.model.encode(output)).decode() for output in outputs]

    else:

        @bentoml.api(route=PATH)
        def infer_one(self, x: list[str]) -> list[str]:
            """Compute a single input."""
            outputs = self.function([self.model.decode(base64.b64decode(each)) for each in x])
            return [base64.b64encode(self.model.encode(output)).decode() for output in outputs]
