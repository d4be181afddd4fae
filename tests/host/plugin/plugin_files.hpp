// Temporary folders, patched copies of a fixture, and the text of thrown errors.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {

inline std::string fixture(const std::string& name) { return std::string(CHASSIS_FIXTURES) + "/" + name; }

class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = std::filesystem::temp_directory_path() / "chassis-test-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw storage_error("no scratch folder");
  }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Replaces all occurrences of a text by a text of the same length.
inline std::string patched(std::string bytes, std::string_view from, std::string_view to) {
  EXPECT_EQ(from.size(), to.size()) << from << " and " << to;
  size_t count = 0;
  for (size_t at = 0; (at = bytes.find(from, at)) != std::string::npos; at += to.size(), ++count) {
    bytes.replace(at, from.size(), to);
  }
  EXPECT_GT(count, 0u) << "no " << from;
  return bytes;
}

// A copy of the fixture plain.so in `folder` with a changed manifest.
inline std::string patched_plain(const ScratchFolder& folder, std::string_view from, std::string_view to) {
  const std::string path = folder / "plain.so";
  write_file_atomic(path, patched(read_file(fixture("good/plain.so")), from, to));
  return path;
}

struct Thrown {
  ExitCode code = ExitCode::kOk;
  std::string text;
};

inline Thrown thrown_by(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::exception& error) {
    return {ExitCode::kInternal, std::string("not an Error: ") + error.what()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline testing::AssertionResult has_text(const char*, const char*, const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected \"" << part << "\" in:\n" << text;
}
#define EXPECT_TEXT(text, part) EXPECT_PRED_FORMAT2(has_text, text, part)

}  // namespace chassis
