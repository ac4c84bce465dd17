"""Asks the model of ``server.py`` for the types of files: ``python examples/file_types/client.py README.md``."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytriton.client import ModelClient

EXAMPLES = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask the model of server.py for the types of files.")
    parser.add_argument("files", nargs="*", type=Path, help="the files (default: one of each kind in the examples)")
    parser.add_argument("--url", default="localhost:8000", help="the server's URL")
    arguments = parser.parse_args()
    files = arguments.files or list({path.suffix: path for path in sorted(EXAMPLES.rglob("*.*"))}.values())

    def ask(file: Path) -> str:
        outputs = client.infer_sample(content=file.read_bytes())
        return f"{outputs['score'].item():7.1%}  {outputs['type'].item().decode():<10} {file.name}"

    with ModelClient(arguments.url, "FileType") as client, ThreadPoolExecutor(8) as pool:
        client.wait_for_model(timeout_s=60)
        start = time.perf_counter()
        for line in pool.map(ask, files):
            print(line)
        print(f"{len(files) / (time.perf_counter() - start):.0f} files/s")


if __name__ == "__main__":
    main()
