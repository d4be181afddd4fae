// What a thread may call, as the headers of the SDK say in brackets: [control] and [step] belong to the thread that
// runs the program, [any] to all. Asserted in debug and sanitizer builds.
#pragma once

#include <cstdint>

namespace chassis {

enum class ThreadRole : uint8_t {
  kAny,   // a plugin's own thread, a chunk of parallel_for
  kStep,  // [control] as well: both are one thread, one after the other
};

#ifdef CHASSIS_THREAD_ROLES
// The calling thread has this role for as long as it lives. Without one, the first thread of the process has kStep, and
// all others have kAny.
class ThreadRoleScope {
 public:
  explicit ThreadRoleScope(ThreadRole role) noexcept;
  ~ThreadRoleScope();
  ThreadRoleScope(const ThreadRoleScope&) = delete;
  ThreadRoleScope& operator=(const ThreadRoleScope&) = delete;

 private:
  ThreadRole outer_;
};

// [any] Ends the process with the name of `function`, and of the plugin if one is running, unless the thread may call
// it.
void assert_thread_role(ThreadRole needed, const char* function) noexcept;
#else
struct ThreadRoleScope {
  explicit ThreadRoleScope(ThreadRole) noexcept {}
  ~ThreadRoleScope() {}  // used, though it does nothing
};
inline void assert_thread_role(ThreadRole, const char*) noexcept {}
#endif

}  // namespace chassis
