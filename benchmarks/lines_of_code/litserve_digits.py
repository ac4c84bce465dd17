"""The service of ``examples/digits`` with LitServe: a picture as JSON, ``{"image": [[0, 16, ...], ...]}``."""

import litserve as ls
import numpy as np
from sklearn.datasets import load_digits
from sklearn.svm import SVC


class DigitsAPI(ls.LitAPI):
    def setup(self, device):
        digits = load_digits()
        self.classifier = SVC(gamma=0.001).fit(digits.data[::2], digits.target[::2])

    def decode_request(self, request):
        return np.array(request["image"]).ravel()

    def predict(self, images):
        return self.classifier.predict(images)

    def encode_response(self, digit):
        return {"digit": int(digit)}


if __name__ == "__main__":
    server = ls.LitServer(DigitsAPI(max_batch_size=64, batch_timeout=0.001), accelerator="cpu")
    server.run(port=8000)
