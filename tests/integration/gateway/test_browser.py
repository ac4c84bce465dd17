"""The pages in a real browser, and JavaScript's own clients.

With ``SCREENSHOTS`` set to a folder, pictures of the pages are saved there, for the docs.
"""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest
from gateways import PNG, gateway_of

from pytriton.gateway import create_key

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs the package chromium")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, gateway):
    """A page that reports requests to other hosts, and errors of scripts."""
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on(
        "request",
        lambda request: (
            None if "127.0.0.1" in request.url[:20] or request.url.startswith("data:") else problems.append(request.url)
        ),
    )
    yield page
    context.close()
    expected = ("422", "500", "401")  # the browser logs responses with these statuses
    assert [problem for problem in problems if not any(status in problem for status in expected)] == []


def picture(page, name):
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=pathlib.Path(folder) / f"{name}.png")


def try_it(page, model, **inputs):
    card = page.locator(f"#model-{model}")
    card.locator("summary").click()
    for name, value in inputs.items():
        card.locator(f"textarea[name={name}]").fill(value)
    card.locator("button").click()
    return card.locator("output")


def test_the_live_page_tries_a_model(page, gateway):
    page.goto(gateway.url)
    sync_api.expect(try_it(page, "Double", x="[1, 2, 3]")).to_have_text('{"y":[2.0,4.0,6.0]}')
    sync_api.expect(try_it(page, "Greet", who="Zoë")).to_have_text('{"text":"hello Zoë"}')
    card = page.locator("#model-Double")
    sync_api.expect(card).to_contain_text("p50")
    sync_api.expect(card).to_contain_text("Doubles numbers.")
    picture(page, "live")


def test_the_live_page_shows_a_stream(page, gateway):
    page.goto(gateway.url)
    sync_api.expect(try_it(page, "Count", n="3")).to_have_text('{"i":0}\n{"i":1}\n{"i":2}\n')


def test_the_live_page_shows_errors(page, gateway):
    page.goto(gateway.url)
    sync_api.expect(try_it(page, "Double", x='"one"')).to_contain_text('"field":"x"')
    sync_api.expect(try_it(page, "Fail", x="[1]")).to_contain_text("no such luck")
    sync_api.expect(page.locator("#model-Fail .errors")).to_contain_text("no such luck")


def test_the_live_page_sends_files(page, gateway, tmp_path):
    path = tmp_path / "name.bin"
    path.write_bytes("Zoë".encode())
    page.goto(gateway.url)
    card = page.locator("#model-Greet")
    card.locator("summary").click()
    card.locator("input[type=file]").first.set_input_files(path)
    card.locator("button").click()
    sync_api.expect(card.locator("output")).to_have_text('{"text":"hello Zoë"}')


def test_the_live_page_shows_images(page, gateway, tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(PNG)
    page.goto(gateway.url)
    card = page.locator("#model-Mirror")
    card.locator("summary").click()
    file = card.locator("input[type=file]")
    assert file.get_attribute("accept") == "image/*"
    file.set_input_files(path)
    sync_api.expect(card.locator(".inputs img")).to_be_visible()
    card.locator("button").click()
    sync_api.expect(card.locator("output img")).to_be_visible()
    assert card.locator("output img").evaluate("image => image.naturalWidth") == 1
    sync_api.expect(card.locator("output")).to_contain_text(f'"size":{len(PNG)}')


def test_the_live_page_on_a_phone_in_dark_mode(browser, gateway):
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.goto(gateway.url)
    sync_api.expect(page.locator("#model-Double")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(27, 27, 27)"
    picture(page, "live-phone")
    context.close()


def test_the_api_page_tries_a_model(page, gateway):
    page.goto(f"{gateway.url}/docs")
    operation = page.locator("#operations-Double-infer_Double")
    operation.locator(".opblock-summary-control").click()
    operation.locator("button.execute").click()
    sync_api.expect(operation.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")
    sync_api.expect(operation.locator(".live-responses-table")).to_contain_text("2")
    picture(page, "api")


@pytest.mark.parametrize(("path", "shown"), [("/", "#model-Double"), ("/docs", "#operations-Double-infer_Double")])
def test_the_pages_prompt_for_a_key(browser, served, tmp_path, path, shown):
    keys = tmp_path / "keys.json"
    key = create_key(keys, "alice")
    with gateway_of(served, api_keys=keys) as gateway:
        page = browser.new_page()
        page.goto(gateway.url + path)
        page.locator("#key").fill("wrong")
        page.locator("#key-form button").click()
        sync_api.expect(page.locator("#key-error")).to_contain_text("not valid")
        page.locator("#key").fill(key)
        page.locator("#key-form button").click()
        sync_api.expect(page.locator(shown)).to_be_visible()
        page.close()


def test_an_event_source(page, gateway):
    page.goto(gateway.url)
    events = page.evaluate(
        """() => new Promise((resolve) => {
            const events = [];
            const source = new EventSource("/v1/models/Count?n=3");
            source.onmessage = (event) => events.push(JSON.parse(event.data).i);
            source.addEventListener("done", () => { source.close(); resolve(events); });
        })"""
    )
    assert events == [0, 1, 2]


def test_fetch(page, gateway):
    page.goto(gateway.url)
    response = page.evaluate(
        """async () => {
            const response = await fetch("/v1/models/Double", { method: "POST", body: JSON.stringify({ x: [1] }) });
            return response.json();
        }"""
    )
    assert response == {"y": [2]}
