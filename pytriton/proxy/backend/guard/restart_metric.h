// The number of restarts of the server, on Triton's metrics endpoint: `pytriton_server_restarts_total`.
#pragma once

namespace pytriton::guard {

// Creates the metric, with the value of the environment variable PYTRITON_SERVER_RESTARTS. Does nothing without it, or
// if metrics are disabled.
void PublishRestarts();

}  // namespace pytriton::guard
