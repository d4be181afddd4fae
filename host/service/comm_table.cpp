// chassis.comm/1: collectives for plugins.
#include "chassis/service/comm.h"

#include <fmt/core.h>

#include "host/plugin/status.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/comm.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

const chassis_comm_group_t* handle_of(const ProcessGroup& group) {
  return reinterpret_cast<const chassis_comm_group_t*>(&group);
}
ProcessGroup& group_of(const chassis_comm_group_t* group) {
  return *reinterpret_cast<ProcessGroup*>(const_cast<chassis_comm_group_t*>(group));
}
CommHandle* work_of(chassis_comm_work_t* work) { return reinterpret_cast<CommHandle*>(work); }

class CommTable final : public Table {
 public:
  explicit CommTable(const TableContext& context)
      : member_(context.instance.member_id),
        is_optimizer_(context.instance.kind == "optimizer"),
        communicator_(context.communicator) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.group = [](const chassis_comm_t* t, const chassis_str_t* axes, uint32_t num_axes,
                      const chassis_comm_group_t** out) {
      assert_thread_role(ThreadRole::kStep, "chassis.comm/1 group");
      const std::vector<std::string> names = names_of(axes, num_axes);
      for (const std::string& name : names) {
        if (self(t).mesh().find(name) < 0)
          return make_status(CHASSIS_NOT_FOUND,
                             fmt::format("the mesh has no axis '{}'; it is {}", name, self(t).mesh().text()));
      }
      return guarded([&] { *out = handle_of(self(t).group(names)); });
    };
    table_.size = [](const chassis_comm_group_t* group) { return static_cast<uint32_t>(group_of(group).size()); };
    table_.rank = [](const chassis_comm_group_t* group) { return static_cast<uint32_t>(group_of(group).rank()); };
    table_.start = [](const chassis_comm_t* t, const chassis_comm_group_t* group,
                      const chassis_collective_t* const* calls, uint32_t num_calls, chassis_comm_work_t** out) {
      assert_thread_role(ThreadRole::kStep, "chassis.comm/1 start");
      if (chassis_status_t* const refusal = refusal_of(t)) return refusal;
      return guarded([&] {
        auto work = std::make_unique<CommHandle>(self(t).start_raw(group_of(group), {calls, num_calls}));
        *out = reinterpret_cast<chassis_comm_work_t*>(work.release());
      });
    };
    table_.wait = [](const chassis_comm_t* t, chassis_comm_work_t* work) {
      assert_thread_role(ThreadRole::kStep, "chassis.comm/1 wait");
      const std::unique_ptr<CommHandle> mine(work_of(work));
      return guarded([&] { self(t).wait(*mine); });
    };
    table_.done = [](const chassis_comm_t*, chassis_comm_work_t* work) -> int32_t {
      assert_thread_role(ThreadRole::kStep, "chassis.comm/1 done");
      return work_of(work)->done();
    };
    table_.agree = [](const chassis_comm_t* t, chassis_str_t what, chassis_status_t* mine) {
      assert_thread_role(ThreadRole::kStep, "chassis.comm/1 agree");
      if (chassis_status_t* const refusal = refusal_of(t)) {
        status_release(mine);
        return refusal;
      }
      if (self(t).moves_nothing()) return mine;
      const std::string& member = static_cast<const CommTable*>(t->impl)->member_;
      return guarded(
          [&] { self(t).world().run_and_agree(std::string(view_of(what)), [&] { throw_if_failed(mine, member); }); });
    };
  }
  const void* get() const override { return *communicator_ ? &table_ : nullptr; }

 private:
  static Communicator& self(const chassis_comm_t* t) { return **static_cast<const CommTable*>(t->impl)->communicator_; }
  // Refuses optimizers: mesh and strategies decide which tensors a rank steps, and how often step() is called.
  static chassis_status_t* refusal_of(const chassis_comm_t* t) {
    const auto& table = *static_cast<const CommTable*>(t->impl);
    if (!table.is_optimizer_) return nullptr;
    return make_status(CHASSIS_FAILED_PRECONDITION,
                       fmt::format("optimizer '{}' communicates by chassis.comm/1, but which parameters a rank steps "
                                   "depends on the mesh; sum over all of them with sum_over_parameters of "
                                   "chassis_optimizer_step_t (in C++: kSums = true)",
                                   table.member_));
  }
  static std::vector<std::string> names_of(const chassis_str_t* axes, uint32_t num_axes) {
    std::vector<std::string> out;
    for (uint32_t i = 0; i < num_axes; ++i) out.emplace_back(view_of(axes[i]));
    return out;
  }

  std::string member_;
  bool is_optimizer_;
  Communicator* const* communicator_;
  chassis_comm_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_comm_table(const TableContext& context) { return std::make_unique<CommTable>(context); }

}  // namespace chassis
