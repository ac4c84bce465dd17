import triton_python_backend_utils as pb_utils

error_during_finalize = True


class TritonPythonModel:
    ...

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", each.inputs()[0].as_numpy())]) for each in requests]

    def finalize(self):
        if error_during_finalize:
            raise pb_utils.TritonModelException("An error occurred during finalize.")
