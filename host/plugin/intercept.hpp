// Guards and watches how plugins use the process's descriptors, files and threads. The program defines some functions
// of the C library itself: as for _exit(), the dynamic linker prefers those of the program. Direct system calls are not
// seen.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// The intercepting functions have an effect only in a program that calls this; in another one, the linker may leave
// them out.
// [control] From now on no plugin's code can close a descriptor of the program (claimed_descriptors.hpp): close(),
// dup2() and their like fail with EBADF, which is a counted warning that names the call.
void guard_descriptors();

// The actions of plugin code during the lifetime of an ActionWatch, each as a sentence about "it".
struct PluginActions {
  std::vector<std::string> descriptors;  // descriptors of the program that it tried to close
  std::vector<std::string> files;        // files outside `folders` that it opened for writing and that still exist
  std::vector<std::string> threads;      // threads that it started
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
