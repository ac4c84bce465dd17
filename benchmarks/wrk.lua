-- Sends one request repeatedly, and writes the results as JSON. Arguments: the file with the body, its type,
-- the size of the KServe header in it (0: it is not a KServe request), and how many events a response has (0: not counted,
-- which would cost time).
local threads = {}
wrong = 0

function setup(thread)
  table.insert(threads, thread)
end

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  wrk.headers["Content-Type"] = arguments[2]
  if tonumber(arguments[3]) > 0 then
    wrk.headers["Inference-Header-Content-Length"] = arguments[3]
  end
  local events = tonumber(arguments[4])
  if events > 0 then
    wrk.headers["Accept"] = "text/event-stream"
  end
  prepared = wrk.format()
  if events > 0 then
    response = function(_status, _headers, body)
      local _, count = body:gsub("data:", "")
      if count ~= events then
        wrong = wrong + 1
      end
    end
  end
end

function request()
  return prepared
end

function done(summary, latency)
  local errors = summary.errors
  local incomplete = 0
  for _, thread in ipairs(threads) do
    incomplete = incomplete + thread:get("wrong")
  end
  io.write(string.format(
    '\n{"requests": %d, "duration_us": %d, "mean_us": %f, "p50_us": %f, "p99_us": %f, "errors": '
    .. '{"connect": %d, "read": %d, "write": %d, "status": %d, "timeout": %d, "responses that are missing": %d}}\n',
    summary.requests, summary.duration, latency.mean, latency:percentile(50), latency:percentile(99),
    errors.connect, errors.read, errors.write, errors.status, errors.timeout, incomplete))
end
