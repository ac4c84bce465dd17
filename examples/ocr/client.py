"""Has the model of ``server.py`` read pictures: ``python examples/ocr/client.py examples/ocr/receipt.png``."""

import argparse
from pathlib import Path

from pytriton.client import ModelClient

RECEIPT = Path(__file__).with_name("receipt.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Have the model of server.py read pictures.")
    parser.add_argument("pictures", nargs="*", type=Path, default=[RECEIPT], help="files with text")
    parser.add_argument("--url", default="localhost:8000", help="the server's URL")
    parser.add_argument("--draw", type=Path, help="file to save the last picture in, with boxes around the texts")
    arguments = parser.parse_args()

    with ModelClient(arguments.url, "OCR", inference_timeout_s=60) as client:
        for picture in arguments.pictures:
            found = client.infer_sample(image=picture.read_bytes())
            for text, score in zip(found["texts"], found["scores"], strict=True):
                print(f"{score:7.1%}  {text.decode()}")
    if arguments.draw:
        from PIL import Image, ImageDraw  # which comes with rapidocr; only drawing needs it

        image = Image.open(picture).convert("RGB")
        for box in found["boxes"]:
            ImageDraw.Draw(image).polygon([*map(tuple, box.tolist())], outline="red", width=2)
        image.save(arguments.draw)


if __name__ == "__main__":
    main()
