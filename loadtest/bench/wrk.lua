-- wrk -s wrk.lua URL -- METHOD BODY_FILE [NAME VALUE]...
-- wrk -s wrk.lua URL -- METHOD REQUESTS_FILE EACH
-- Repeats one request, or those of a file in turn (each behind its length and a line break); prints one line that loadtest/bench/wrk_client.py reads. Times are microseconds.
function init(args)
  wrk.method = args[1]
  local file = assert(io.open(args[2], "rb"))
  local body = file:read("*a")
  file:close()
  if args[3] == "EACH" then
    local requests, at, next_one = {}, 1, 0
    while at <= #body do
      local _, stop, length = body:find("^(%d+)\n", at)
      requests[#requests + 1] = body:sub(stop + 1, stop + length)
      at = stop + length + 1
    end
    request = function()
      next_one = next_one % #requests + 1
      return requests[next_one]
    end
    return
  end
  if #body > 0 then wrk.body = body end
  for at = 3, #args, 2 do
    wrk.headers[args[at]] = args[at + 1]
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    "RESULT %d %d %d %d %d\n",
    summary.requests,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    summary.duration,
    latency:percentile(50.0),
    latency:percentile(99.0)
  ))
end
