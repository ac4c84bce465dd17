# %% [markdown]
# # A model served from a notebook
#
# Without a context manager and without `serve`, the server runs in the background, and other cells can run.
# Editors open this file as a notebook: each `# %%` starts a cell.

# %%
from __future__ import annotations

from typing import Any

import numpy as np
import tritonclient.http
from numpy.typing import NDArray

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

triton = Triton()


# %%
@batch
def add_sub(a: NDArray[np.float32], b: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    return {"add": a + b, "sub": a - b}


vector = (-1,)
triton.bind(
    model_name="AddSub",
    infer_func=add_sub,
    inputs=[Tensor(name="a", dtype=np.float32, shape=vector), Tensor(name="b", dtype=np.float32, shape=vector)],
    outputs=[Tensor(name="add", dtype=np.float32, shape=vector), Tensor(name="sub", dtype=np.float32, shape=vector)],
    config=ModelConfig(max_batch_size=128),
)

# %%
# Returns once the model is ready.
triton.run()
print(f"Serving on HTTP port {triton.config.http_port}")

# %%
inputs = []
for name, values in (("a", [1, 2, 3]), ("b", [10, 20, 30])):
    array = np.array([values], np.float32)
    tensor = tritonclient.http.InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    inputs.append(tensor)

with tritonclient.http.InferenceServerClient(f"127.0.0.1:{triton.config.http_port}") as client:
    result = client.infer("AddSub", inputs)
print("add:", result.as_numpy("add").tolist())
print("sub:", result.as_numpy("sub").tolist())

# %%
# To replace the function, bind another one under the same name. At the end:
triton.stop()
