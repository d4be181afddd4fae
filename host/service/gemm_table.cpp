// chassis.gemm/1: matrix products for plugins.
#include "chassis/service/gemm.h"

#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/gemm.hpp"
#include "host/service/memory.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

class GemmTable final : public Table {
 public:
  explicit GemmTable(const TableContext& context) : owner_(context.memory_owner) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.run = [](const chassis_gemm_t* t, const chassis_gemm_problem_t* problem) -> chassis_status_t* {
      assert_thread_role(ThreadRole::kStep, "chassis.gemm/1 run");
      try {
        const auto ours = read_struct(problem, "gemm: the problem");
        if (const GemmRefusal refusal = refusal_of(ours); refusal.code != CHASSIS_OK)
          return make_status(refusal.code, "gemm: " + refusal.reason);
        const MemoryTag tag(MemoryCategory::kWorkspace, static_cast<const GemmTable*>(t->impl)->owner_);
        gemm(ours, bf16_method(ours));
        return nullptr;
      } catch (...) {
        return status_of_current_exception();
      }
    };
    table_.scratch_bytes = [](const chassis_gemm_t*, const chassis_gemm_problem_t* problem) {
      try {
        const auto ours = read_struct(problem, "gemm: the problem");
        return gemm_scratch_bytes(ours, bf16_method(ours));
      } catch (...) {
        return uint64_t{0};
      }
    };
  }
  const void* get() const override { return &table_; }

 private:
  uint16_t owner_;
  chassis_gemm_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_gemm_table(const TableContext& context) { return std::make_unique<GemmTable>(context); }

}  // namespace chassis
