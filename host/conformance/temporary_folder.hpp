// A folder for a test of a plugin, removed with its contents.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "host/base/error.hpp"

namespace chassis {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::string_view name)
      : path_((std::filesystem::temp_directory_path() / (std::string(name) + "-XXXXXX")).string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw storage_error("cannot create a folder like " + path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace chassis
