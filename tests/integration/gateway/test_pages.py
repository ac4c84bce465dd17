"""The pages and their assets, all of which come from the gateway."""

from __future__ import annotations

import pytest

ASSETS = {
    "/": ("live.js", "key.js", "pages.css"),
    "/docs": ("swagger-ui-bundle.js", "swagger-ui.css", "key.js", "docs.js", "pages.css"),
}


@pytest.mark.parametrize("path", ASSETS)
def test_a_page_has_assets_of_the_gateway_alone(gateway, path):
    page = gateway.get(path)
    assert page.headers["content-type"].startswith("text/html")
    assert b"//" not in page.body
    for name in ASSETS[path]:
        assert name.encode() in page.body
        assert gateway.get(f"/assets/{name}").status == 200


def test_other_files_are_not_served(gateway):
    assert gateway.get("/assets/../config.py").status == 404
