// The products of a program, for each token.
#include "host/compile/unit_flops.hpp"

#include <gtest/gtest.h>

#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

using test::Recorder;

// A linear from 3 channels to 2 of each patch, and one from 4 to 2 of each token.
Program patches_and_tokens() {
  return test::record([](Recorder& r) {
    const DimId patches = r.bounded_dim("patches", 10), channels = r.dim("channels", 3), hidden = r.dim("hidden", 4),
                out = r.dim("out", 2);
    const uint32_t block = r.block("tower", [&] {
      const ValueId pixels = r.field("pixels", CHASSIS_DTYPE_F32, {patches, channels});
      const ValueId x = r.field("x", CHASSIS_DTYPE_F32, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, hidden});
      r.output("y", r.op("linear", "proj", {pixels}, {r.slot("proj.weight", {{out}, {channels}})}, {}, {out}));
      r.output("z", r.op("linear", "head", {x}, {r.slot("head.weight", {{out}, {hidden}})}, {}, {out}));
    });
    r.chain("tower", "", {block});
  });
}

TEST(UnitFlops, ALinearOverABoundedDimCountsItsOwnRows) {
  const Program program = patches_and_tokens();
  const double of_tokens = 6.0 * 4 * 2;
  EXPECT_DOUBLE_EQ(flops_per_token(program, DimSizes::largest(program, 2, 5)), of_tokens + 6.0 * 3 * 2);
  EXPECT_DOUBLE_EQ(flops_per_token(program, DimSizes::largest(program, 2, 50)), of_tokens + 6.0 * 3 * 2 / 10);
}

}  // namespace
}  // namespace chassis
