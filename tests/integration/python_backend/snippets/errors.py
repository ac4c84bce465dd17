import triton_python_backend_utils as pb_utils

an_error_occurred = True


class TritonPythonModel:
    ...

    def execute(self, requests):
        responses = []

        for request in requests:
            if an_error_occurred:
                # If there is an error, the output_tensors are ignored
                responses.append(
                    pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError("An Error Occurred"))
                )

        return responses
