// The conformance tests of communication backends find each fault of a faulty backend.
#include "host/conformance/comm_checks.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "host/plugin/status.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

struct Ranks {
  Ranks(const std::string& id, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      instances.push_back(plugins.make("comm", id));
      const Instance& instance = *instances.back();
      subjects.push_back(
          {&instance.interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID), instance.get(), instance.label()});
    }
  }
  // Replaces functions of the backend.
  void replace(void (*change)(chassis_comm_backend_t&)) {
    replaced = *subjects.front().table;
    original = subjects.front().table;
    change(replaced);
    for (CommSubject& subject : subjects) subject.table = &replaced;
  }
  std::string failures() const {
    std::string text;
    for (const std::string& failure : comm_failures(subjects)) text += failure + "\n";
    return text;
  }

  test::LoadedPlugins plugins;
  std::vector<std::unique_ptr<Instance>> instances;
  std::vector<CommSubject> subjects;
  chassis_comm_backend_t replaced{};
  static const chassis_comm_backend_t* original;
};
const chassis_comm_backend_t* Ranks::original = nullptr;

using Calls = std::vector<chassis_collective_t>;

// Starts the calls after `change` has modified them.
template <class Change>
chassis_status_t* start_changed(chassis_instance* self, chassis_backend_group_t* group,
                                const chassis_collective_t* const* calls, uint32_t num_calls, void* stream,
                                chassis_backend_work_t** out, const Change& change) {
  Calls changed;
  for (uint32_t i = 0; i < num_calls; ++i) change(changed.emplace_back(*calls[i]));
  std::vector<const chassis_collective_t*> pointers;
  for (const chassis_collective_t& call : changed) pointers.push_back(&call);
  return Ranks::original->start(self, group, pointers.data(), num_calls, stream, out);
}

TEST(CommConformance, OurBackendsPass) {
  EXPECT_EQ(Ranks("gloo", 4).failures(), "");
  EXPECT_EQ(Ranks("gloo", 2).failures(), "");
  EXPECT_EQ(Ranks("fake", 2).failures(), "");
}

TEST(CommConformance, FindsASumThatIsAMaximum) {
  Ranks ranks("gloo", 2);
  ranks.replace([](chassis_comm_backend_t& table) {
    table.start = [](chassis_instance* self, chassis_backend_group_t* group, const chassis_collective_t* const* calls,
                     uint32_t n, void* stream, chassis_backend_work_t** out) {
      return start_changed(self, group, calls, n, stream, out, [](chassis_collective_t& call) {
        if (call.reduce == CHASSIS_REDUCE_SUM && call.dtype == CHASSIS_DTYPE_I64) call.reduce = CHASSIS_REDUCE_MAX;
      });
    };
  });
  EXPECT_HAS(ranks.failures(), "(sum) of 17 i64 on 2 ranks: element ");
}

TEST(CommConformance, FindsAnOmittedElement) {
  Ranks ranks("gloo", 2);
  ranks.replace([](chassis_comm_backend_t& table) {
    table.start = [](chassis_instance* self, chassis_backend_group_t* group, const chassis_collective_t* const* calls,
                     uint32_t n, void* stream, chassis_backend_work_t** out) {
      return start_changed(self, group, calls, n, stream, out, [](chassis_collective_t& call) {
        if (call.op == CHASSIS_COMM_ALL_REDUCE && call.count > 20000) --call.count;
      });
    };
  });
  EXPECT_HAS(ranks.failures(), "all_reduce (sum) of 20001 f32 on 2 ranks: element 20000 on rank ");
}

TEST(CommConformance, FindsAWorkThatIsNeverDone) {
  Ranks ranks("gloo", 2);
  ranks.replace([](chassis_comm_backend_t& table) {
    table.done = [](chassis_instance*, chassis_backend_work_t*) -> int32_t { return 0; };
  });
  EXPECT_HAS(ranks.failures(), "work is not done after its wait");
}

TEST(CommConformance, FindsPropertiesThatMeanNothing) {
  Ranks ranks("gloo", 2);
  ranks.replace([](chassis_comm_backend_t& table) { table.properties |= 0x40; });
  EXPECT_EQ(ranks.failures(), "its properties have the bits 0x40, which mean nothing; the host knows 0x3\n");
}

TEST(CommConformance, ReportsTheRefusalsOfABackend) {
  Ranks ranks("gloo", 2);
  ranks.replace([](chassis_comm_backend_t& table) {
    table.start = [](chassis_instance*, chassis_backend_group_t*, const chassis_collective_t* const* calls, uint32_t,
                     void*, chassis_backend_work_t**) {
      return make_status(CHASSIS_UNIMPLEMENTED, "no collective " + std::to_string(calls[0]->op));
    };
  });
  EXPECT_HAS(ranks.failures(), "no collective 8");
  ranks.replaced.supports = [](chassis_instance*, uint32_t, int32_t) {
    return make_status(CHASSIS_UNIMPLEMENTED, "CUDA only");
  };
  EXPECT_HAS(comm_unsupported_reason(ranks.subjects.front()), "it does not support CPU memory: ");
  ranks.replaced.supports = [](chassis_instance*, uint32_t, int32_t) {
    return make_status(CHASSIS_INTERNAL, "no idea");
  };
  EXPECT_THROW(comm_unsupported_reason(ranks.subjects.front()), Error) << "another error is not a reason to skip";
}

}  // namespace
}  // namespace chassis
