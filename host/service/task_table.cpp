// chassis.task/1: loops on LibTorch's intra-op threads, so that a process has one thread pool.
#include "chassis/service/task.h"

#include <ATen/Parallel.h>

#include "host/plugin/signal_stack.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/tables.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

class TaskTable final : public Table {
 public:
  TaskTable() {
    initialize_vector_math();
    table_.struct_size = sizeof table_;
    table_.num_threads = [](const chassis_task_t*) { return static_cast<uint32_t>(at::get_num_threads()); };
    table_.parallel_for = [](const chassis_task_t*, int64_t count, int64_t grain, void (*body)(void*, int64_t, int64_t),
                             void* context) {
      assert_thread_role(ThreadRole::kStep, "chassis.task/1 parallel_for");
      if (count <= 0) return;
      // A body that throws ends the process with the name of the call, since there is no status to return.
      at::parallel_for(0, count, grain > 0 ? grain : 1, [=](int64_t begin, int64_t end) noexcept {
        install_signal_stack();
        const ThreadRoleScope chunk(ThreadRole::kAny);
        body(context, begin, end);
      });
    };
  }
  const void* get() const override { return &table_; }

 private:
  chassis_task_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_task_table(const TableContext&) { return std::make_unique<TaskTable>(); }

}  // namespace chassis
