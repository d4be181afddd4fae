#include "host/mesh/failure.hpp"

#include <charconv>

namespace chassis {

bool post_failure(Store& store, const Failure& failure) {
  constexpr size_t kMaxText = 64 << 10;
  return store.set_once("failure", pack({std::to_string(failure.rank), std::to_string(static_cast<int>(failure.code)),
                                         failure.text.substr(0, kMaxText)}));
}

std::optional<Failure> find_failure(Store& store) {
  const auto found = store.find("failure");
  if (!found) return std::nullopt;
  const std::vector<std::string> fields = unpack(*found);
  CHASSIS_CHECK(fields.size() == 3, "a failure has three fields");
  return Failure{std::stoi(fields[0]), static_cast<ExitCode>(std::stoi(fields[1])), fields[2]};
}

std::string pack(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) packed += std::to_string(text.size()) + ':' + text;
  return packed;
}

std::vector<std::string> unpack(const std::string& packed) {
  std::vector<std::string> texts;
  const char* const end = packed.data() + packed.size();
  for (const char* at = packed.data(); at != end;) {
    size_t size = 0;
    const auto [colon, failure] = std::from_chars(at, end, size);
    CHASSIS_CHECK(
        failure == std::errc() && colon != end && *colon == ':' && size <= static_cast<size_t>(end - colon - 1),
        "a message of the store has its lengths");
    texts.emplace_back(colon + 1, size);
    at = colon + 1 + size;
  }
  return texts;
}

}  // namespace chassis
