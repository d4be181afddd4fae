// Feeds lines to the readers of control requests and replies. A line is refused with a config error, or is a request
// within all bounds, which is the same after it is written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/control/control_reply.hpp"
#include "host/control/control_request.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace chassis;
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  try {
    const ControlRequest request = parse_control_request(text);
    if (request.id.empty() || request.id.size() > 64 || request.generation < -1) std::abort();
    std::string line;
    try {
      line = control_line(request);
    } catch (const Error&) {  // escapes made it longer
      if (num_bytes < kMaxControlLineBytes / 8) std::abort();
      return 0;
    }
    const ControlRequest again = parse_control_request(line);
    if (again.verb != request.verb || again.id != request.id || again.generation != request.generation ||
        again.set != request.set || again.file != request.file || again.file_name != request.file_name ||
        again.plugins != request.plugins)
      std::abort();
  } catch (const Error& refused) {
    if (refused.code() != ExitCode::kConfig) std::abort();
  }
  try {
    const ControlReply reply = parse_control_reply(text);
    if (json_line(control_json(parse_control_reply(json_line(control_json(reply))))) != json_line(control_json(reply)))
      std::abort();
  } catch (const Error& refused) {
    if (refused.code() != ExitCode::kConfig) std::abort();
  }
  return 0;
}
