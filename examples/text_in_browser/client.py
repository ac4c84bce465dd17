"""Prints the text of ``server.py`` as it is written: ``python examples/text_in_browser/client.py "The class"``."""

import argparse
import json
import urllib.parse
import urllib.request


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the text of server.py as it is written.")
    parser.add_argument("prompt", nargs="?", default="The class", help="the start of the text")
    parser.add_argument("--length", type=int, default=60, help="how many words to write")
    parser.add_argument("--url", default="http://localhost:8080", help="the server's URL")
    arguments = parser.parse_args()

    query = urllib.parse.urlencode({"prompt": arguments.prompt, "length": arguments.length})
    request = urllib.request.Request(
        f"{arguments.url}/v1/models/Writer?{query}", headers={"accept": "text/event-stream"}
    )
    print(arguments.prompt, end="", flush=True)
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            if line.startswith(b"data: {"):
                print(json.loads(line.removeprefix(b"data: ")).get("text", ""), end="", flush=True)
    print()


if __name__ == "__main__":
    main()
