// Metrics of the server itself, on Triton's metrics endpoint.
#pragma once

namespace pytriton::guard {

// Creates `pytriton_server_restarts_total`, with the value of the environment variable PYTRITON_SERVER_RESTARTS, and
// `pytriton_hanging_calls_total`. Does nothing without that variable, or if metrics are disabled.
void PublishMetrics();

// Updates `pytriton_hanging_calls_total`.
void UpdateHangs();

}  // namespace pytriton::guard
