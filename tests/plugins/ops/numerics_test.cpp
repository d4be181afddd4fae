// Every op's backward, of every provider, against LibTorch's autograd in double precision.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/ops_cases.hpp"

namespace chassis::test {
namespace {

struct Run {
  std::string library;
  c10::ScalarType dtype;
};

class Numerics : public testing::TestWithParam<Run> {};

TEST_P(Numerics, AgreeWithAutogradInDoublePrecision) {
  OpsProvider provider(GetParam().library);
  for (const OpsCase& ops_case : vocabulary_cases())
    EXPECT_TRUE(check_case(provider, ops_case, GetParam().dtype, bounds_of(GetParam().dtype)))
        << ops_case.name << " was refused";
  EXPECT_EQ(provider.live_tensors(), 0);
}

TEST_P(Numerics, AgreeForThePatternsThatAreClaimed) {
  OpsProvider provider(GetParam().library);
  std::set<std::string> offered;
  for (uint32_t i = 0; i < provider.table().num_patterns; ++i)
    offered.insert({provider.table().patterns[i].ptr, provider.table().patterns[i].len});
  for (const OpsCase& ops_case : fused_cases())
    if (offered.count(ops_case.node(GetParam().dtype).pattern())) {
      EXPECT_TRUE(check_case(provider, ops_case, GetParam().dtype, bounds_of(GetParam().dtype))) << ops_case.name;
    }
}

std::string name_of(const testing::TestParamInfo<Run>& info) {
  return info.param.library + "_" + c10::toString(info.param.dtype);
}

INSTANTIATE_TEST_SUITE_P(Providers, Numerics,
                         testing::Values(Run{"reference", at::kDouble}, Run{"reference", at::kFloat},
                                         Run{"reference", at::kBFloat16}, Run{"aten", at::kDouble},
                                         Run{"aten", at::kFloat}, Run{"aten", at::kBFloat16}),
                         name_of);

}  // namespace
}  // namespace chassis::test
