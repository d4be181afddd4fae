// A copy of the program with a plugin folder of its own, to which a test adds plugins: those count as installed with
// it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace chassis::test {

class ProgramCopy {
 public:
  ProgramCopy(std::string folder, const std::vector<std::string>& plugins) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_ + "/bin");
    std::filesystem::create_directories(plugins_folder());
    std::filesystem::copy(CHASSIS_TEST_BINARY_DIR "/bin/chassis", path());
    for (const std::string& name : plugins) add(name);
  }
  std::string path() const { return folder_ + "/bin/chassis"; }
  std::string plugins_folder() const { return folder_ + "/lib/chassis/plugins"; }
  void add(const std::string& name, const std::string& from = CHASSIS_TEST_PLUGIN_DIR) const {
    std::filesystem::copy(from + "/" + name + ".so", plugins_folder() + "/" + name + ".so");
  }

 private:
  std::string folder_;
};

}  // namespace chassis::test
