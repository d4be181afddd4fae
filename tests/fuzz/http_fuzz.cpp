// Feeds requests to the pages of sinks. Every request gets an answer, and only GET and HEAD requests for names of this
// machine get the page.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "chassis/http.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace chassis;
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  bool was_asked = false;
  const ListenerProtocol protocol = http_protocol([&](const HttpRequest& request, bool may_follow) -> HttpAnswer {
    was_asked = true;
    const auto is_inside = [&](std::string_view part) {
      return part.empty() || (part.data() >= text.data() && part.data() + part.size() <= text.data() + text.size());
    };
    if (!is_inside(request.path) || !is_inside(request.query) || !is_inside(request.host)) std::abort();
    if (!request.path.starts_with('/') || (request.method != "GET" && request.method != "HEAD")) std::abort();
    if (request.num_hosts > 0 && request.host.find_first_of("@/") != request.host.npos) std::abort();
    if (const auto since = query_value(request.query, "since"); since && !is_inside(*since)) std::abort();
    return {.body = "page", .follows = may_follow};
  });
  const size_t size = protocol.request_size(text);
  if (size > num_bytes) std::abort();
  const ListenerAnswer answer = protocol.answer(text.substr(0, size), true);
  if (!answer.bytes.starts_with("HTTP/1.1 ")) std::abort();
  if (answer.bytes.starts_with("HTTP/1.1 200") != was_asked) std::abort();
  return 0;
}
