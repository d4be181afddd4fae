// Components of composite tensors.
#include "host/state/composite.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"
#include "host/state/cover.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

// bitsandbytes' nf4 with double quantization.
Descriptor nf4(Shape shape, Placement placement) {
  Descriptor d = Descriptor::plain("q_proj.weight", Dtype::bf16, shape);
  d.placements = {std::move(placement)};
  d.components = {Component::per_unit("", Dtype::u8, 64, 32), Component::per_unit(".absmax", Dtype::u8, 64, 1),
                  Component::per_unit(".nested_absmax", Dtype::f32, 64 * 256, 1),
                  Component::whole(".quant_map", Dtype::f32, {16})};
  return d;
}

const MeshShape kMesh({{"dp_shard", 3}});

TEST(Composite, CutsEveryComponentWhereItsElementsAreCut) {
  const Descriptor d = nf4({256, 512}, Placement::dim_chunk({"dp_shard"}, 0));
  EXPECT_EQ(d.block_elements(), 64 * 256);  // 32 rows
  const Layout layout(d, kMesh);
  EXPECT_EQ(layout.boxes(2)[0], (Box{{192, 0}, {256, 512}}));
  const Layout packed(component_descriptor(d, d.components[0]), kMesh);
  EXPECT_EQ(packed.descriptor().global_shape, (Shape{256, 256}));
  EXPECT_EQ(packed.boxes(2)[0], (Box{{192, 0}, {256, 256}}));
  const Layout absmax(component_descriptor(d, d.components[1]), kMesh);
  EXPECT_EQ(absmax.boxes(2)[0], (Box{{192, 0}, {256, 8}}));
  const Layout nested(component_descriptor(d, d.components[2]), kMesh);
  EXPECT_EQ(nested.descriptor().global_shape, (Shape{8}));
  EXPECT_EQ(nested.boxes(2)[0], (Box{{6}, {8}}));
  const Layout map(component_descriptor(d, d.components[3]), kMesh);
  EXPECT_EQ(map.descriptor().fqn, "q_proj.weight.quant_map");
  EXPECT_EQ(map.owned_boxes(0).size(), 1u);
  EXPECT_TRUE(map.owned_boxes(1).empty());
}

TEST(Composite, CutsColumnsBetweenUnits) {
  Descriptor d = nf4({4, 256}, Placement::dim_chunk({"dp_shard"}, 1));
  d.components.erase(d.components.begin() + 2);  // without double quantization
  const Layout absmax(component_descriptor(d, d.components[1]), kMesh);
  EXPECT_EQ(absmax.boxes(0)[0], (Box{{0, 0}, {4, 2}}));
  EXPECT_EQ(absmax.boxes(1)[0], (Box{{0, 2}, {4, 4}}));
  prove_cover({&absmax, 1});
}

// A vector keeps the dims of its tensor where they are cut, and where it is asked to.
TEST(Composite, HasTheDimsOfItsTensorWhereColumnsAreCut) {
  Descriptor d = nf4({4, 256}, Placement::dim_chunk({"dp_shard"}, 1));
  Component codes = d.components[0];
  codes.form = Component::Form::kColumn;
  EXPECT_EQ(component_descriptor(d, codes).global_shape, (Shape{4, 128}));
  d.placements = {Placement::dim_chunk({"dp_shard"}, 0)};
  EXPECT_EQ(component_descriptor(d, codes).global_shape, (Shape{512, 1}));
  EXPECT_EQ(component_descriptor(d, codes, true).global_shape, (Shape{4, 128}));
}

TEST(Composite, RefusesColumnsThatDivideAUnit) {
  const Descriptor d = nf4({4, 96}, Placement::dim_chunk({"dp_shard"}, 1));
  try {
    component_descriptor(d, d.components[1]);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_HAS(error.message(), "tensor 'q_proj.weight' [4, 96]: ");
    EXPECT_HAS(error.message(), " divides units of '.absmax', which have 64 elements");
    EXPECT_HAS(error.hint_text(), "a last dim of 64 or 128 can be cut this way, or one of 96 in units of 32");
  }
}

}  // namespace
}  // namespace chassis
