import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    ...

    def execute(self, requests):
        ...
        # Create an InferenceRequest object. `model_name`,
        # `requested_output_names`, and `inputs` are the required arguments and
        # must be provided when constructing an InferenceRequest object. Make sure
        # to replace `inputs` argument with a list of `pb_utils.Tensor` objects.
        inference_request = pb_utils.InferenceRequest(
            model_name="model_name",
            requested_output_names=["REQUESTED_OUTPUT_1", "REQUESTED_OUTPUT_2"],
            inputs=[requests[0].inputs()[0]],
        )

        # `pb_utils.InferenceRequest` supports request_id, correlation_id, and model
        # version in addition to the arguments described above. These arguments
        # are optional. An example containing all the arguments:
        inference_request = pb_utils.InferenceRequest(
            model_name="model_name",
            requested_output_names=["REQUESTED_OUTPUT_1", "REQUESTED_OUTPUT_2"],
            inputs=[requests[0].inputs()[0]],
            request_id="1",
            correlation_id=4,
            model_version=1,
        )

        # Execute the inference_request and wait for the response
        inference_response = inference_request.exec()

        # Check if the inference response has an error
        if inference_response.has_error():
            raise pb_utils.TritonModelException(inference_response.error().message())
        else:
            # Extract the output tensors from the inference response.
            output1 = pb_utils.get_output_tensor_by_name(inference_response, "REQUESTED_OUTPUT_1")
            output2 = pb_utils.get_output_tensor_by_name(inference_response, "REQUESTED_OUTPUT_2")

            # Decide the next steps for model execution based on the received output
            # tensors. It is possible to use the same output tensors to for the final
            # inference resposne too.
            return [pb_utils.InferenceResponse([pb_utils.Tensor("y", output1.as_numpy() + output2.as_numpy())])]
