// Loops over the host's threads.
#pragma once

#include <atomic>
#include <exception>
#include <type_traits>
#include <utility>

#include "chassis/host.hpp"

CHASSIS_SDK_BEGIN

// [any]
inline int num_threads(const Host& host) {
  const auto& task = host.service<chassis_task_t>();
  return static_cast<int>(task.num_threads(&task));
}

// [step] Calls body(begin, end) over disjoint chunks that cover [0, count), each at least `grain` long except the last;
// returns when all are done. If bodies throw, one of the exceptions is rethrown.
template <typename Body>
void parallel_for(const Host& host, int64_t count, int64_t grain, Body&& body) {
  struct Context {
    std::remove_reference_t<Body>* body;
    std::atomic<bool> failed{false};
    std::exception_ptr error;
  } context{&body, {}, {}};
  const auto& task = host.service<chassis_task_t>();
  task.parallel_for(
      &task, count, grain,
      [](void* opaque, int64_t begin, int64_t end) {
        auto& context = *static_cast<Context*>(opaque);
        try {
          (*context.body)(begin, end);
        } catch (...) {
          if (!context.failed.exchange(true)) context.error = std::current_exception();
        }
      },
      &context);
  if (context.error) std::rethrow_exception(context.error);
}

CHASSIS_SDK_END
