-- Sends one request again and again, and writes what came of it as JSON. Arguments: the file with the body, its type,
-- and the size of the KServe header in it (0: it is no KServe request).
function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  wrk.headers["Content-Type"] = arguments[2]
  if tonumber(arguments[3]) > 0 then
    wrk.headers["Inference-Header-Content-Length"] = arguments[3]
  end
  prepared = wrk.format()
end

function request()
  return prepared
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "duration_us": %d, "errors": %d, "mean_us": %f, "p50_us": %f, "p99_us": %f}\n',
    summary.requests, summary.duration,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency.mean, latency:percentile(50), latency:percentile(99)))
end
