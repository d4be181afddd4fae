// Compares the messages for broken configurations, NAME.toml, with NAME.expected. A first line "# overrides: a=b c=d"
// in the TOML gives overrides on the command line. CHASSIS_UPDATE_GOLDEN=1 writes the expected files.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "host/base/file.hpp"

namespace chassis {

inline std::vector<std::string> golden_overrides(const std::string& toml) {
  const std::string mark = "# overrides: ";
  std::vector<std::string> overrides;
  if (!toml.starts_with(mark)) return overrides;
  std::istringstream words(toml.substr(mark.size(), toml.find('\n') - mark.size()));
  for (std::string word; words >> word;) overrides.push_back(word);
  return overrides;
}

// `refusal` gets a file name relative to the folder, which is the current directory, and returns the whole message,
// empty if the configuration was accepted.
inline void expect_golden_refusals(
    const std::string& folder,
    const std::function<std::string(const std::string& file, const std::vector<std::string>& overrides)>& refusal) {
  namespace fs = std::filesystem;
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(".")) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path().filename().string());
  }
  std::sort(files.begin(), files.end());
  EXPECT_FALSE(files.empty()) << folder;
  for (const std::string& file : files) {
    const std::string message = refusal(file, golden_overrides(read_file(file)));
    EXPECT_FALSE(message.empty()) << file << " was accepted";
    const std::string expected_file = fs::path(file).replace_extension(".expected").string();
    if (std::getenv("CHASSIS_UPDATE_GOLDEN") != nullptr) write_file_atomic(expected_file, message + "\n");
    if (!fs::exists(expected_file)) {
      ADD_FAILURE() << expected_file << " is missing; the message is:\n" << message;
      continue;
    }
    EXPECT_EQ(message + "\n", read_file(expected_file)) << file;
  }
  fs::current_path(before);
}

}  // namespace chassis
