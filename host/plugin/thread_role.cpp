// The role of each thread, and the assertion that a function is called by a thread of the right role.
#include "host/plugin/thread_role.hpp"

#ifdef CHASSIS_THREAD_ROLES

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace chassis {
namespace {

thread_local ThreadRole role = gettid() == getpid() ? ThreadRole::kStep : ThreadRole::kAny;

}  // namespace

ThreadRoleScope::ThreadRoleScope(ThreadRole role_here) noexcept : outer_(role) { role = role_here; }
ThreadRoleScope::~ThreadRoleScope() { role = outer_; }

void assert_thread_role(ThreadRole needed, const char* function) noexcept {
  if (role == needed) return;
  std::fprintf(stderr, "%s is called by a thread that may not call it\n", function);
  std::abort();
}

}  // namespace chassis

#endif
