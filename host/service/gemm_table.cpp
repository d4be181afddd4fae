// chassis.gemm/1: matrix products for plugins.
#include "chassis/service/gemm.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/gemm.hpp"
#include "host/service/memory.hpp"
#include "host/service/tables.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

class GemmTable final : public Table {
 public:
  explicit GemmTable(const TableContext& context) : owner_(context.memory_owner) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.run = [](const chassis_gemm_t* t, const chassis_gemm_problem_t* problem) {
      assert_thread_role(ThreadRole::kStep, "chassis.gemm/1 run");
      return run(t, [&] { return std::array{read_struct(problem, "gemm: the problem")}; });
    };
    table_.run_many = [](const chassis_gemm_t* t, const chassis_gemm_problem_t* problems, uint32_t num_problems) {
      assert_thread_role(ThreadRole::kStep, "chassis.gemm/1 run_many");
      return run(t, [&] { return read_problems(problems, num_problems); });
    };
    table_.scratch_bytes = [](const chassis_gemm_t*, const chassis_gemm_problem_t* problem) {
      return bytes_or_0([&] { return scratch_bytes_of(read_struct(problem, "gemm: the problem")); });
    };
    table_.many_scratch_bytes = [](const chassis_gemm_t*, const chassis_gemm_problem_t* problems,
                                   uint32_t num_problems) {
      return bytes_or_0([&] {
        const std::vector<chassis_gemm_problem_t> ours = read_problems(problems, num_problems);
        uint64_t sum = 0;
        for (const auto& list : divide(ours, num_threads())) sum += largest_scratch(list);
        return std::max(sum, largest_scratch(ours));
      });
    };
  }
  const void* get() const override { return &table_; }

 private:
  static std::vector<chassis_gemm_problem_t> read_problems(const chassis_gemm_problem_t* problems, uint32_t count) {
    std::vector<chassis_gemm_problem_t> ours;
    for (uint32_t i = 0; i < count; ++i) {
      const std::string name = fmt::format("gemm: problem {} of {}", i + 1, count);
      ours.push_back(read_struct(problems ? sized_item(problems, i) : nullptr, name));
    }
    return ours;
  }

  template <typename Read>
  static chassis_status_t* run(const chassis_gemm_t* t, Read&& read) {
    try {
      const auto problems = read();  // an array or a vector: one product needs no memory
      for (size_t i = 0; i < problems.size(); ++i)
        if (const GemmRefusal refusal = refusal_of(problems[i]); refusal.code != CHASSIS_OK) {
          const std::string which =
              problems.size() == 1 ? "" : fmt::format("problem {} of {}: ", i + 1, problems.size());
          return make_status(refusal.code, fmt::format("gemm: {}{}", which, refusal.reason));
        }
      const uint16_t owner = static_cast<const GemmTable*>(t->impl)->owner_;
      const auto run_all = [owner](std::span<const chassis_gemm_problem_t> some) {
        const MemoryTag tag(MemoryCategory::kWorkspace, owner);
        for (const chassis_gemm_problem_t& problem : some) gemm(problem, bf16_method(problem));
      };
      const auto lists = problems.size() > 1 ? divide(problems, num_threads()) : decltype(divide({}, 1)){};
      if (lists.empty())
        run_all(problems);
      else
        run_parallel(static_cast<int64_t>(lists.size()), 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) run_all(lists[static_cast<size_t>(i)]);
        });
      return nullptr;
    } catch (...) {
      return status_of_current_exception();
    }
  }

  template <typename Bytes>
  static uint64_t bytes_or_0(Bytes&& bytes) {
    try {
      return bytes();
    } catch (...) {
      return 0;
    }
  }
  static uint64_t scratch_bytes_of(const chassis_gemm_problem_t& p) { return gemm_scratch_bytes(p, bf16_method(p)); }
  static uint64_t largest_scratch(const std::vector<chassis_gemm_problem_t>& problems) {
    uint64_t largest = 0;
    for (const chassis_gemm_problem_t& p : problems) largest = std::max(largest, scratch_bytes_of(p));
    return largest;
  }

  uint16_t owner_;
  chassis_gemm_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_gemm_table(const TableContext& context) { return std::make_unique<GemmTable>(context); }

}  // namespace chassis
