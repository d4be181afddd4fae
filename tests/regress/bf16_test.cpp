// Training in bf16 with fp32 masters stays near fp32.
#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

class Bf16 : public WithProviders {};
INSTANTIATE_TEST_SUITE_P(, Bf16, testing::Values(Providers{"sdpa", "[\"aten\"]"}));

TEST_P(Bf16, TrainsWithinItsRoundingErrors) {
  const SmallRun run(GetParam());
  run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
  const std::vector<std::string> overrides = {"train.micro_batch_size=2", "train.global_batch_size=4"};
  auto half = overrides;
  half.push_back("precision.compute=bf16");
  expect_within_bf16(train(run, 8, half), train(run, 8, overrides));
}

TEST_P(Bf16, AnUpdateTooSmallForBf16IsNotLost) {
  const SmallRun run(GetParam());
  run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
  const std::vector<std::string> overrides = {"train.micro_batch_size=4", "precision.compute=bf16",
                                              "optimizer.lr=1e-6"};
  const Trained one = train(run, 1, overrides), many = train(run, 20, overrides);
  const double moved = relative_l2(many.weights, one.weights);
  EXPECT_GT(moved, 1e-6);  // 19 steps of at most 1e-6, on weights of about 0.1
  EXPECT_LT(moved, 1e-3);
}

}  // namespace
}  // namespace chassis::test
