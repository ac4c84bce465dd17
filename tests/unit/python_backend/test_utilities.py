"""The rest of ``triton_python_backend_utils``."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from declared import config_of, tensor
from hypothesis import given
from hypothesis import strategies as st

from pytriton.python_backend import c_python_backend_utils as c_utils
from pytriton.python_backend import triton_python_backend_utils as pb_utils

Refused = pb_utils.TritonModelException


def y(value=1):
    return pb_utils.Tensor("y", np.full((1, 1), value, np.float32))


def test_a_request_with_an_input_twice_is_refused():
    with pytest.raises(Refused, match="input 'y' already exists in request"):
        pb_utils.InferenceRequest("model", ["y"], [y(1), y(2)]).exec()


class TestByteTensors:
    @given(st.lists(st.binary()))
    def test_serialized_elements_are_read_as_they_were_written(self, items):
        array = np.empty(len(items), object)
        array[:] = items
        serialized = pb_utils.serialize_byte_tensor(array)
        assert pb_utils.deserialize_bytes_tensor(serialized).tolist() == items
        assert serialized == b"".join(len(item).to_bytes(4, "little") + item for item in items)
        assert serialized.item() == serialized

    def test_strings_and_objects_are_written_as_utf_8(self):
        for array in (np.array(["é"]), np.array(["é"], object)):
            assert pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(array)).tolist() == ["é".encode()]
        assert pb_utils.serialize_byte_tensor(np.array([[7]], object)) == b"\1\0\0\x007"

    def test_bytes_arrays_are_written_in_order(self):
        assert pb_utils.serialize_byte_tensor(np.array([[b"a", b"b"], [b"c", b"d"]]).T)[4::5] == b"acbd"

    def test_numbers_are_refused(self):
        with pytest.raises(Refused, match="float64 is not a tensor of BYTES"):
            pb_utils.serialize_byte_tensor(np.zeros(1))

    @pytest.mark.parametrize("data", [b"\1", b"\1\0\0\0", b"\1\0\0\0ab\0"])
    def test_truncated_bytes_are_refused(self, data):
        with pytest.raises(Refused, match="end within an element"):
            pb_utils.deserialize_bytes_tensor(data)


class TestErrors:
    def test_codes_are_those_of_triton(self):
        names = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS"]
        assert [getattr(pb_utils.TritonError, name) for name in [*names, "CANCELLED"]] == list(range(8))

    def test_an_error_has_a_message_and_a_code(self):
        error = pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)
        assert (error.message(), error.code()) == ("no", 2)
        assert pb_utils.TritonError("no").code() == pb_utils.TritonError.INTERNAL

    def test_a_message_may_be_bytes(self):
        assert pb_utils.TritonError(b"no such word").message() == "no such word"
        assert str(pb_utils.TritonModelException(b"no weights")) == "no weights"

    def test_a_message_is_a_string(self):
        with pytest.raises(TypeError, match="ValueError"):
            pb_utils.TritonError(ValueError("no"))

    def test_other_codes_are_refused(self):
        with pytest.raises(ValueError, match="code 8"):
            pb_utils.TritonError("no", 8)


class TestOtherNames:
    def test_the_classes_have_a_second_module(self):
        assert c_utils.Tensor is pb_utils.Tensor
        assert c_utils.InferenceRequest is pb_utils.InferenceRequest
        assert issubclass(c_utils.TritonModelException, Exception)
        assert all(hasattr(c_utils, name) for name in c_utils.__all__)

    def test_the_second_module_has_the_constants(self):
        names = [name for name in pb_utils.__all__ if name.startswith("TRITONSERVER_")]
        assert [getattr(c_utils, name) for name in names] == [getattr(pb_utils, name) for name in names]

    def test_the_module_has_numpy(self):
        assert pb_utils.np is np

    def test_datatypes_of_a_configuration_have_numpy_types(self):
        assert pb_utils.TRITON_STRING_TO_NUMPY["TYPE_FP16"] is np.float16
        assert pb_utils.TRITON_STRING_TO_NUMPY["TYPE_STRING"] is np.object_

    def test_levels_of_the_log_have_names(self):
        assert pb_utils.LogLevel is pb_utils.Logger.LogLevel
        assert pb_utils.Logger.LogLevel.WARNING == pb_utils.Logger.WARNING == 1


class TestResponses:
    def test_a_response_has_outputs_and_parameters(self):
        response = pb_utils.InferenceResponse([y()], parameters={"a": 1})
        assert [each.name() for each in response.output_tensors()] == ["y"]
        assert (response.has_error(), response.error()) == (False, None)
        assert json.loads(response.parameters()) == {"a": 1}

    def test_a_response_may_be_an_error(self):
        response = pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError("no"))
        assert response.has_error()
        assert response.error().message() == "no"

    def test_parameters_have_names(self):
        with pytest.raises(TypeError, match="a parameter's name is 1"):
            pb_utils.InferenceResponse(parameters={1: "a"})

    @pytest.mark.parametrize(
        "arguments",
        [
            {"output_tensors": [np.zeros(1)]},
            {"output_tensors": y()},
            {"output_tensors": {"y": y()}},
            {"output_tensors": np.zeros(1)},
            {"error": "no"},
            {"parameters": ["a"]},
            {"parameters": {"a": None}},
            {"parameters": {"a": 2**63}},
        ],
    )
    def test_invalid_responses_are_refused(self, arguments):
        with pytest.raises(Refused):
            pb_utils.InferenceResponse(**arguments)


class TestRequests:
    def test_a_request_has_its_arguments(self):
        memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0)
        request = pb_utils.InferenceRequest(
            "other", ["y"], [y()], "id", "sequence", 3, 1, 500, memory, None, {"a": True}
        )
        assert request.model_name() == "other"
        assert request.requested_output_names() == {"y"}
        assert [each.name() for each in request.inputs()] == ["y"]
        assert (request.request_id(), request.correlation_id(), request.flags()) == ("id", "sequence", 1)
        assert (request.timeout(), json.loads(request.parameters())) == (500, {"a": True})
        request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        assert request.flags() == 2

    def test_names_ids_and_parameters_may_be_bytes(self):
        request = pb_utils.InferenceRequest(b"other", [b"y"], [y()], b"id", b"sequence", parameters={b"a": b"b"})
        assert (request.model_name(), request.requested_output_names()) == ("other", {"y"})
        assert (request.request_id(), request.correlation_id()) == ("id", "sequence")
        assert json.loads(request.parameters()) == {"a": "b"}

    @pytest.mark.parametrize(
        "arguments",
        [
            {"model_name": None},
            {"requested_output_names": "y"},
            {"requested_output_names": [1]},
            {"inputs": y()},
            {"request_id": 1},
            {"correlation_id": 1.5},
            {"model_version": "1"},
            {"flags": "1"},
            {"timeout": 0.5},
        ],
        ids=str,
    )
    def test_arguments_of_other_types_are_refused(self, arguments):
        good = {"model_name": "other", "requested_output_names": ["y"], "inputs": [y()]}
        with pytest.raises(TypeError):
            pb_utils.InferenceRequest(**{**good, **arguments})

    @pytest.mark.parametrize(
        ("argument", "number"),
        [
            ("timeout", -1),
            ("timeout", 1 << 63),
            ("correlation_id", -1),
            ("correlation_id", 1 << 64),
            ("flags", -1),
            ("flags", 1 << 32),
        ],
    )
    def test_numbers_that_cannot_be_sent_are_refused(self, argument, number):
        with pytest.raises(Refused, match=f"a request has {argument}={number}: use a number from 0 to"):
            pb_utils.InferenceRequest("other", ["y"], [y()], **{argument: number})

    def test_a_request_without_a_trace_has_no_context(self):
        request = pb_utils.InferenceRequest("other", ["y"], [y()])
        assert request.trace().get_context() is None
        assert pb_utils.InferenceRequest("other", ["y"], [y()], trace=request.trace()).trace().id() == 0

    def test_inputs_are_tensors(self):
        with pytest.raises(Refused, match="ndarray among its inputs"):
            pb_utils.InferenceRequest("other", ["y"], [np.zeros(1)])

    def test_only_served_requests_have_response_senders(self):
        request = pb_utils.InferenceRequest(model_name="other", requested_output_names=["y"], inputs=[])
        with pytest.raises(Refused, match="response sender"):
            request.get_response_sender()
        with pytest.raises(Refused, match="rescheduled"):
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)


def test_tensors_are_found_by_name():
    request = pb_utils.InferenceRequest("other", ["y"], [y()])
    assert pb_utils.get_input_tensor_by_name(request, "y") is request.inputs()[0]
    assert pb_utils.get_input_tensor_by_name(request, "z") is None
    response = pb_utils.InferenceResponse([y()])
    assert pb_utils.get_output_tensor_by_name(response, "y").name() == "y"
    assert pb_utils.get_output_tensor_by_name(response, "z") is None


def test_settings_are_found_by_name():
    config = config_of(decoupled=True)
    assert pb_utils.get_input_config_by_name(config, "x")["data_type"] == "TYPE_FP32"
    assert pb_utils.get_input_config_by_name(config, "y") is None
    assert pb_utils.get_output_config_by_name(config, "y")["dims"] == [-1]
    assert pb_utils.using_decoupled_model_transaction_policy(config)
    assert not pb_utils.using_decoupled_model_transaction_policy({})


class TestModelConfig:
    @staticmethod
    def of(**config):
        return pb_utils.ModelConfig(json.dumps({"name": "m", **config}))

    def test_a_configuration_is_completed(self):
        config = self.of(input=[], max_batch_size=0)
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        config.set_model_transaction_policy({"decoupled": True})
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "optional": True})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": (2, -1)})
        assert config.as_dict() == {
            "name": "m",
            "max_batch_size": 8,
            "dynamic_batching": {},
            "model_transaction_policy": {"decoupled": True},
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "optional": True}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2, -1]}],
        }

    def test_equal_settings_in_config_pbtxt_are_accepted(self):
        config = self.of(output=[tensor("y")], max_batch_size=8, dynamic_batching={"a": 1})
        config.add_output(tensor("y"))
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        for _ in range(2):
            config.set_model_transaction_policy({"decoupled": True})
        assert config.as_dict()["output"] == [tensor("y")]
        assert config.as_dict()["dynamic_batching"] == {"a": 1}

    def test_dims_are_written_as_integers(self):
        config = self.of()
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": np.array([2, -1])})
        assert json.dumps(config.as_dict()["output"][0]["dims"]) == "[2, -1]"

    def test_settings_missing_in_config_pbtxt_are_filled_in(self):
        config = self.of(output=[{"name": "y", "data_type": "TYPE_INVALID", "dims": []}])
        config.add_output(tensor("y"))
        assert config.as_dict()["output"] == [tensor("y")]

    @pytest.mark.parametrize(
        ("said", "change", "message"),
        [
            ({"max_batch_size": 8}, ("set_max_batch_size", 4), "max_batch_size is 8 in config.pbtxt"),
            ({"sequence_batching": {}}, ("set_dynamic_batching",), "scheduler is 'sequence_batching'"),
            (
                {"input": [tensor("x")]},
                ("add_input", tensor("x", "TYPE_INT8")),
                "data_type of input 'x' is 'TYPE_FP32'",
            ),
            ({"output": [tensor("y")]}, ("add_output", tensor("y", dims=[2])), "dims of output 'y' is [-1]"),
            (
                {"input": [tensor("x", optional=True)]},
                ("add_input", tensor("x", optional=False)),
                "optional of input 'x' is True in config.pbtxt, and cannot become False",
            ),
            ({"input": [tensor("x")]}, ("add_input", tensor("x", optional=True)), "optional of input 'x' is False"),
            ({}, ("add_input", {"name": "x", "dims": [1]}), "input 'x' lacks the key 'data_type'"),
            ({}, ("add_output", tensor("y", optional=True)), "an output has the key 'optional'"),
            ({}, ("set_model_transaction_policy", {"coupled": 1}), "the key 'coupled'"),
            (
                {"model_transaction_policy": {"decoupled": False}},
                ("set_model_transaction_policy", {"decoupled": True}),
                "decoupled is False in config.pbtxt, and cannot become True",
            ),
            ({}, ("add_input", {**tensor("x"), "dims": -1}), "input 'x' has the dims -1: use a list of integers"),
        ],
    )
    def test_contradictions_are_refused(self, said, change, message):
        config = self.of(**said)
        method, *arguments = change
        with pytest.raises(Refused, match=re.escape(message)) as refused:
            getattr(config, method)(*arguments)
        assert isinstance(refused.value, ValueError)
        assert type(refused.value).__name__ == "ModelConfigError"  # part of the error of the load

    def test_models_add_settings_to_the_dictionary_under_its_nvidia_name(self):
        config = self.of(max_batch_size=8)
        config.set_dynamic_batching()
        config._model_config["dynamic_batching"]["max_queue_delay_microseconds"] = 100
        config._model_config["parameters"] = {"KEY": {"string_value": "value"}}
        assert config.as_dict()["dynamic_batching"] == {"max_queue_delay_microseconds": 100}
        assert config.as_dict()["parameters"] == {"KEY": {"string_value": "value"}}


class TestWithoutAServer:
    def test_the_log_is_standard_error(self, capsys):
        pb_utils.Logger.log_info("an info")
        pb_utils.Logger.log_warn("a warning")
        pb_utils.Logger.log_error("an error")
        pb_utils.Logger.log_verbose("more")
        pb_utils.Logger.log("the same", pb_utils.Logger.WARNING)
        line = r"test_utilities\.py:\d+\] "
        said = "".join(
            f"{letter} {line}{text}\n"
            for letter, text in zip("IWEVW", ["an info", "a warning", "an error", "more", "the same"], strict=True)
        )
        assert re.fullmatch(said, capsys.readouterr().err)

    def test_other_log_levels_are_refused(self):
        with pytest.raises(Refused, match="is not a level"):
            pb_utils.Logger.log("x", 9)
