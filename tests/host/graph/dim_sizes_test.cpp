// The sizes of dims in plans and in micro-batches.
#include "host/graph/dim_sizes.hpp"

#include <gtest/gtest.h>

#include "host/graph/op_table.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

using test::refusal;

// B, T, hidden = 4 and at most 6 patches, with one block that has a value [patches, hidden].
struct Bounded {
  Program program;
  const DimId hidden = 2, patches = 3;

  Bounded() {
    program.dims = predeclared_dims();
    program.dims.insert(program.dims.end(), {{"hidden", 4}, {"patches", 6, DimKind::kBounded}, {"half", 2}});
    program.blocks.emplace_back().name = "tower";
    program.blocks[0].add_value({"x", {patches, hidden}, GraphValueType::kCompute, {}});
  }
  std::string reshape(const std::vector<DimId>& dims) {
    return refusal([&] {
      Op op{OpId("reshape"), "r", {0}, {}, {}, {}};
      infer_outputs(program, program.blocks[0], op, dims);
    });
  }
};

TEST(Dims, EachKindGetsItsSizeFromElsewhere) {
  const Bounded of;
  DimSizes sizes{2, 5};
  sizes.set(of.program, of.patches, 3);
  EXPECT_EQ(sizes.size_of(of.program, CHASSIS_DIM_BATCH), 2);
  EXPECT_EQ(sizes.size_of(of.program, CHASSIS_DIM_TIME), 5);
  EXPECT_EQ(sizes.size_of(of.program, of.hidden), 4);
  EXPECT_EQ(sizes.size_of(of.program, of.patches), 3);
  EXPECT_HAS(refusal([&] { DimSizes{2, 5}.size_of(of.program, of.patches); }), "patches");
}

TEST(Dims, APlanUsesTheMaximumOfABoundedDim) {
  const Bounded of;
  const DimSizes largest = DimSizes::largest(of.program, 2, 5);
  EXPECT_EQ(largest.size_of(of.program, of.patches), 6);
  DimSizes other{2, 5};
  other.set(of.program, of.patches, 5);
  EXPECT_FALSE(other == largest);
  other.set(of.program, of.patches, 6);
  EXPECT_TRUE(other == largest);
}

TEST(Dims, ASizeAboveTheMaximumIsRefused) {
  const Bounded of;
  DimSizes sizes;
  EXPECT_HAS(refusal([&] { sizes.set(of.program, of.patches, 7); }),
             "dim 'patches' has size 7 in a micro-batch; the model's maximum is 6");
}

TEST(Dims, ATextShowsTheMaximumOfABoundedDim) {
  const Bounded of;
  EXPECT_EQ(of.program.dims_text({CHASSIS_DIM_BATCH, of.patches, of.hidden}), "[B, patches≤6, hidden=4]");
}

TEST(Dims, AReshapeKeepsABoundedDimWhole) {
  Bounded of;
  const DimId half = 4;
  EXPECT_EQ(of.reshape({of.patches, half, half}), "");
  EXPECT_HAS(of.reshape({of.hidden, of.hidden}), "cannot view [patches≤6, hidden=4] as [hidden=4, hidden=4]");
  of.program.dims[of.patches].size = 4;  // the products of the numbers agree
  EXPECT_HAS(of.reshape({of.hidden, of.hidden}), "cannot view");
}

TEST(Dims, AParameterHasOnlyFixedDims) {
  const Bounded of;
  const DimId dims[] = {of.patches};
  const chassis_axis_t axis{dims, 1};
  chassis_slot_desc_t desc{};
  desc.struct_size = sizeof desc;
  desc.num_axes = 1;
  desc.name = str_of("table");
  desc.axes = &axis;
  desc.role = CHASSIS_ROLE_WEIGHT;
  desc.init = CHASSIS_INIT_ZEROS;
  EXPECT_HAS(refusal([&] { record_slot(of.program, of.program.blocks[0], desc); }),
             "parameter 'table': it has the dim 'patches', whose size is not fixed");
}

}  // namespace
}  // namespace chassis
