// Thread roles, which the SDK headers give in brackets: only the thread that runs the program may call [control] and
// [step] functions; every thread may call [any] functions. Asserted in debug and sanitizer builds.
#pragma once

#include <cstdint>

namespace chassis {

enum class ThreadRole : uint8_t {
  kAny,   // a plugin's own thread, a chunk of parallel_for
  kStep,  // also [control]: one thread has both roles
};

#ifdef CHASSIS_THREAD_ROLES
// Gives the calling thread a role during its lifetime. By default, the first thread of the process has kStep, all
// others kAny.
class ThreadRoleScope {
 public:
  explicit ThreadRoleScope(ThreadRole role) noexcept;
  ~ThreadRoleScope();
  ThreadRoleScope(const ThreadRoleScope&) = delete;
  ThreadRoleScope& operator=(const ThreadRoleScope&) = delete;

 private:
  ThreadRole outer_;
};

// [any] Ends the process unless the calling thread has the role `needed`. Names `function`, and the plugin if one is
// running.
void assert_thread_role(ThreadRole needed, const char* function) noexcept;
#else
struct ThreadRoleScope {
  explicit ThreadRoleScope(ThreadRole) noexcept {}
  ~ThreadRoleScope() {}  // prevents warnings about unused variables
};
inline void assert_thread_role(ThreadRole, const char*) noexcept {}
#endif

}  // namespace chassis
