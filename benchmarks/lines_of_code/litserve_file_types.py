"""The service of ``examples/file_types`` with LitServe: ``curl -F content=@FILE localhost:8000/predict``."""

import litserve as ls
from magika import Magika


class FileTypeAPI(ls.LitAPI):
    def setup(self, device):
        self.magika = Magika()

    def decode_request(self, request):
        return request["content"].file.read()

    def predict(self, content):
        return self.magika.identify_bytes(content)

    def encode_response(self, result):
        return {"type": result.output.label, "score": result.score}


if __name__ == "__main__":
    server = ls.LitServer(FileTypeAPI(), accelerator="cpu")
    server.run(port=8000)
