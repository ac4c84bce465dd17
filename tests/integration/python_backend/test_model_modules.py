"""How ``model.py`` is imported, and the arguments that it gets, on the real server."""

from __future__ import annotations

import json

import pytest
from pb_models import HEAD, TEXT, execute, text_of, write
from serving import connection_to, json_floats, needs_flags, running_triton
from worker_models import command, write_model


@pytest.fixture
def load(triton, repository, name):
    """Writes a model whose class has this body, and has it loaded."""

    def load(body, head=HEAD, **more):
        return write(triton, repository, name, head, body, whole=TEXT, **more)

    return load


def test_a_model_imports_modules_beside_it_relatively(triton, repository, name):
    code = f"from . import helper\nfrom .sub import VALUE\n{HEAD}"
    body = "def execute(self, requests):\n        return [text([__name__, helper.VALUE, VALUE]) for _ in requests]"
    folder = write_model(repository, name, code=f"{code}    {body}\n")
    (folder.parent / "config.pbtxt").write_text(TEXT)
    (folder / "helper.py").write_text("from .sub import VALUE as DEEP\nVALUE = DEEP + 1\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "__init__.py").write_text("VALUE = 7\n")
    assert command(triton, name, "load") == (200, None)
    assert text_of(triton, name) == ["1.model", 8, 7]


def test_a_model_may_replace_its_execute_while_it_serves(triton, name, load):
    body = """
loads = 0
def execute(self, requests):
    self.loads += 1
    self.execute = self.answer
    return self.answer(requests)
def answer(self, requests):
    return [text(self.loads) for _ in requests]
"""
    load(body, head=HEAD)
    assert [text_of(triton, name) for _ in range(3)] == [1, 1, 1]


def test_an_instance_knows_its_name(triton, name, load):
    body = "def initialize(self, args):\n    self.args = args\n" + execute(
        "return [text(self.args['model_instance_name']) for _ in requests]"
    )
    load(body, head=HEAD)
    assert text_of(triton, name) == f"{name}_0"


def test_the_classes_are_found_under_their_second_module(triton, name, load):
    head = HEAD.replace("import json\n", "import json\nimport c_python_backend_utils as c_utils\n")
    load(execute("return [text(isinstance(each, c_utils.InferenceRequest)) for each in requests]"), head=head)
    assert text_of(triton, name) is True


def test_a_request_without_a_trace_has_no_context(triton, name, load):
    load(execute("return [text([each.trace().id(), each.trace().get_context()]) for each in requests]"))
    assert text_of(triton, name) == [0, None]


@needs_flags("trace-config")
def test_a_traced_request_has_the_context_of_its_span(tmp_path, name):
    body = execute("return [text([each.trace().id(), each.trace().get_context()]) for each in requests]")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    settings = ["mode=opentelemetry", "opentelemetry,url=127.0.0.1:9/v1/traces", "rate=1", "level=TIMESTAMPS"]
    with running_triton(model_repository=tmp_path, trace_config=settings) as triton:
        triton.run()
        write(triton, tmp_path, name, HEAD, body, whole=TEXT)
        with connection_to(triton) as connection:
            body = json.dumps({"inputs": [json_floats([1])]})
            headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
            connection.request("POST", f"/v2/models/{name}/infer", body, headers)
            number, context = json.loads(json.load(connection.getresponse())["outputs"][0]["data"][0])
    assert number > 0
    assert trace_id in json.loads(context)["traceparent"]
