// Lengths precede texts.
#include "host/launch/packed_text.hpp"

#include <fmt/format.h>

#include <charconv>

#include "host/base/printable.hpp"

namespace chassis {
namespace {

Error foreign_value(const std::string& what, const std::string& found) {
  return Error(ExitCode::kCommunication, fmt::format("the store holds '{}' as {}, which no rank of this program wrote",
                                                     printable(found, 60), what))
      .hint("another program, or another version of this one, uses the port; choose one with MASTER_PORT");
}

}  // namespace

std::string pack(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) packed += std::to_string(text.size()) + ':' + text;
  return packed;
}

int number_from_store(const std::string& text, int min, int max, const std::string& what) {
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || end != text.data() + text.size() || number < min || number > max)
    throw foreign_value(what, text);
  return number;
}

ExitCode exit_code_from_store(const std::string& text) {
  return static_cast<ExitCode>(number_from_store(text, 1, 255, "an exit code"));
}

std::vector<std::string> unpack(const std::string& packed, std::optional<size_t> count) {
  std::vector<std::string> texts;
  const char* const end = packed.data() + packed.size();
  for (const char* at = packed.data(); at != end;) {
    size_t size = 0;
    const auto [colon, failure] = std::from_chars(at, end, size);
    if (failure != std::errc() || colon == end || *colon != ':' || size > static_cast<size_t>(end - colon - 1))
      throw foreign_value("a message with lengths", packed);
    texts.emplace_back(colon + 1, size);
    at = colon + 1 + size;
  }
  if (count && texts.size() != *count) throw foreign_value(fmt::format("a message of {} parts", *count), packed);
  return texts;
}

}  // namespace chassis
