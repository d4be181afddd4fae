// Conformance of communication backends, against plain loops: all ops, dtypes, equal and unequal parts, batches, in
// place, several works in flight; 1 to 4 ranks.
#include <cmath>

#include "checked_calls.hpp"

namespace chassis::test {
namespace {

template <typename T>
void all_ops(CheckedCalls& calls, uint64_t count) {
  const auto add_and_start = [&](auto&& add) { add(), calls.start(); };
  add_and_start([&] { add_all_gather<T>(calls, count, false); });
  add_and_start([&] { add_all_gather<T>(calls, count, true); });
  add_and_start([&] { add_unequal_all_gather<T>(calls, count); });
  add_and_start([&] { add_all_to_all<T>(calls, count); });
  add_and_start([&] { add_unequal_all_to_all<T>(calls, count); });
  add_and_start([&] { add_ring<T>(calls, count); });
  for (int root : {0, calls.size() - 1}) add_and_start([&] { add_broadcast<T>(calls, count, root); });
  if constexpr (kReduces<T>) {
    for (uint32_t reduce : {CHASSIS_REDUCE_SUM, CHASSIS_REDUCE_AVG, CHASSIS_REDUCE_MAX}) {
      if (reduce == CHASSIS_REDUCE_AVG && !kAverages<T>) continue;
      add_and_start([&] { add_reduce_scatter<T>(calls, count, reduce, false); });
      add_and_start([&] { add_reduce_scatter<T>(calls, count, reduce, true); });
      add_and_start([&] { add_unequal_reduce_scatter<T>(calls, count, reduce); });
      add_and_start([&] { add_all_reduce<T>(calls, count, reduce, false); });
      add_and_start([&] { add_all_reduce<T>(calls, count, reduce, true); });
    }
  }
  calls.wait();
}

template <typename Visit>
void for_each_dtype(Visit&& visit) {
  visit(float{});
  visit(double{});
  visit(c10::BFloat16{});
  visit(c10::Half{});
  visit(int32_t{});
  visit(int64_t{});
  visit(uint8_t{});
}

void expect_success(const std::vector<RankEnd>& ends) {
  for (size_t rank = 0; rank < ends.size(); ++rank)
    EXPECT_FALSE(ends[rank].failed) << "rank " << rank << ": " << ends[rank].text;
}

struct Ranks {
  std::string backend;
  int number;
  friend void PrintTo(const Ranks& ranks, std::ostream* out) { *out << ranks.number << " ranks of " << ranks.backend; }
};

class Conformance : public testing::TestWithParam<Ranks> {
 protected:
  void run(const std::function<void(CheckedCalls&)>& body, const Json& options = Json::object()) {
    RankSetup setup{.backend = GetParam().backend, .options = options, .axes = {}};
    setup.deadline = std::chrono::seconds(60);
    if (setup.backend == "nccl_on_cpu") {
      setup.options["library"] = CHASSIS_TEST_BINARY_DIR "/tests/fake_nccl/libnccl.so.2";
      setup.plugin_folder = CHASSIS_TEST_BINARY_DIR "/tests/fake_cuda";
    }
    expect_success(run_ranks(GetParam().number, setup, [&](Communicator& communicator, RankPlugins&) {
      CheckedCalls calls(communicator, communicator.group({}));
      body(calls);
    }));
  }
};

TEST_P(Conformance, EveryOpMovesAndReducesEveryDtype) {
  run([](CheckedCalls& calls) {
    for (uint64_t count : {0, 1, 7, 1000})
      for_each_dtype([&](auto element) { all_ops<decltype(element)>(calls, count); });
  });
}

TEST_P(Conformance, LargeCallsAreSplitIntoChunks) {
  run([](CheckedCalls& calls) {
    all_ops<float>(calls, 300007);
    all_ops<c10::BFloat16>(calls, 600011);
  });
}

class Connections : public Conformance {};
TEST_P(Connections, CarryOneCallTogether) {
  run(
      [](CheckedCalls& calls) {
        all_ops<float>(calls, 100003);
        all_ops<uint8_t>(calls, 5);
      },
      {{"connections", 3}});
}

TEST_P(Conformance, ABatchOfDifferentOpsIsOneWork) {
  run([](CheckedCalls& calls) {
    for (int i = 0; i < 20; ++i) {
      add_all_gather<float>(calls, 100, false);
      add_ring<c10::BFloat16>(calls, 33);
      add_all_reduce<int64_t>(calls, 50000, CHASSIS_REDUCE_SUM, true);
      calls.add(call_of(CHASSIS_COMM_BARRIER, Dtype{}, nullptr, nullptr, 0));
      add_reduce_scatter<c10::Half>(calls, 70001, CHASSIS_REDUCE_AVG, false);
      add_unequal_all_to_all<uint8_t>(calls, 9);
      add_all_reduce<double>(calls, 3, CHASSIS_REDUCE_MAX, true);
      calls.start();
    }
    calls.wait();
  });
}

TEST_P(Conformance, HalvesAreAddedInFp32AndRoundedOnce) {
  // 256 + 1 is 256 in bf16: rounding at each addition would lose every 1.
  run([](CheckedCalls& calls) {
    auto& values = calls.buffer(std::vector<c10::BFloat16>(1000, calls.rank() == 0 ? 256.0f : 1.0f));
    calls.add(
        call_of(CHASSIS_COMM_ALL_REDUCE, Dtype::bf16, values.data(), values.data(), values.size(), CHASSIS_REDUCE_SUM));
    calls.start();
    calls.expect(
        values, std::vector<c10::BFloat16>(1000, static_cast<c10::BFloat16>(255.0f + static_cast<float>(calls.size()))),
        "256 + 1 + …");
    calls.wait();
  });
}

TEST_P(Conformance, SpecialValuesOfHalfTypesAreKept) {
  run([](CheckedCalls& calls) {
    const float infinity = INFINITY;
    const std::vector<float> numbers = {0.0f,  -0.0f,  infinity, -infinity, NAN,
                                        6e-8f, -3e-5f, 65504.0f, -65504.0f, 1e-7f};
    std::vector<c10::Half> f16;
    std::vector<c10::BFloat16> bf16;
    for (float number : numbers) {
      f16.push_back(number);
      bf16.push_back(number);
    }
    std::vector<c10::Half> f16_sums = f16;
    std::vector<c10::BFloat16> bf16_sums = bf16;
    calls.add(call_of(CHASSIS_COMM_ALL_REDUCE, Dtype::f16, f16_sums.data(), f16_sums.data(), f16_sums.size(),
                      CHASSIS_REDUCE_SUM));
    calls.add(call_of(CHASSIS_COMM_ALL_REDUCE, Dtype::bf16, bf16_sums.data(), bf16_sums.data(), bf16_sums.size(),
                      CHASSIS_REDUCE_SUM));
    calls.start();
    calls.wait();
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto times = static_cast<float>(calls.size());
      const float wanted_f16 = static_cast<c10::Half>(times * static_cast<float>(f16[i]));
      const float wanted_bf16 = static_cast<c10::BFloat16>(times * static_cast<float>(bf16[i]));
      if (std::isnan(numbers[i])) continue;
      EXPECT_EQ(wanted_f16, static_cast<float>(f16_sums[i])) << numbers[i];
      EXPECT_EQ(wanted_bf16, static_cast<float>(bf16_sums[i])) << numbers[i];
    }
  });
}

const auto gloo = testing::Values(Ranks{"gloo", 1}, Ranks{"gloo", 2}, Ranks{"gloo", 3}, Ranks{"gloo", 4});
INSTANTIATE_TEST_SUITE_P(Gloo, Conformance, gloo);
INSTANTIATE_TEST_SUITE_P(Gloo, Connections, gloo);
INSTANTIATE_TEST_SUITE_P(NcclOnCpu, Conformance, testing::Values(Ranks{"nccl_on_cpu", 2}, Ranks{"nccl_on_cpu", 3}));

}  // namespace
}  // namespace chassis::test
