"""The service of ``examples/ocr`` with LitServe: ``curl -F image=@FILE localhost:8000/predict``."""

import litserve as ls
from rapidocr import RapidOCR


class OCRAPI(ls.LitAPI):
    def setup(self, device):
        self.ocr = RapidOCR(params={"Global.log_level": "error", "EngineConfig.onnxruntime.intra_op_num_threads": 1})

    def decode_request(self, request):
        return request["image"].file.read()

    def predict(self, image):
        return self.ocr(image)

    def encode_response(self, found):
        boxes = [] if found.boxes is None else found.boxes.tolist()
        return {"texts": found.txts or (), "scores": found.scores or (), "boxes": boxes}


if __name__ == "__main__":
    server = ls.LitServer(OCRAPI(), accelerator="cpu", workers_per_device=2)
    server.run(port=8000)
