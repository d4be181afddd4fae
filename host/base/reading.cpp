// Exceptions of the JSON library and of the file system as Errors.
#include "host/base/reading.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

namespace chassis {
namespace {

// The message without its prefix "[json.exception.type_error.302] ".
std::string detail_of(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find("] ");
  return end == text.npos ? text : text.substr(end + 2);
}

}  // namespace

void rethrow_as_error(const std::string& file, ExitCode code) {
  try {
    throw;
  } catch (const nlohmann::json::exception& error) {
    throw Error(code, SourcePosition{file}, "unexpected content: " + detail_of(error));
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string path = error.path1().empty() ? file : error.path1().string();
    throw storage_error("cannot read '" + path + "': " + error.code().message());
  }
}

}  // namespace chassis
