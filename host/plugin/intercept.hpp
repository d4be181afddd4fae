// What plugins do with descriptors, files and threads of the process, by functions of the C library that this program
// has too: as for _exit(), the dynamic linker prefers those of the program. Direct system calls are not seen.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// The functions have an effect only where this is called; without it, a linker may leave them out.
// [control] From now on no plugin's code can close a descriptor of the program (claimed_descriptors.hpp): close(),
// dup2() and their like fail with EBADF, which is a counted warning that names the call.
void guard_descriptors();

// What the code of plugins has done during the lifetime of an ActionWatch, each as a sentence about "it".
struct PluginActions {
  std::vector<std::string> descriptors;  // of the program, that it tried to close
  std::vector<std::string> files;        // that it opened for writing outside of `folders`, and that still exist
  std::vector<std::string> threads;      // that it started
};

// One object at a time.
class ActionWatch {
 public:
  explicit ActionWatch(std::vector<std::string> folders);
  ~ActionWatch();
  ActionWatch(const ActionWatch&) = delete;
  ActionWatch& operator=(const ActionWatch&) = delete;
  PluginActions actions() const;

 private:
  std::vector<std::string> folders_;
};

}  // namespace chassis
