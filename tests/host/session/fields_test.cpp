// A model may take the fields of a batch that the data gives; any other field is refused by name.
#include "host/session/fields.hpp"

#include <gtest/gtest.h>

#include "host/session/run_data.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

using test::record;
using test::Recorder;

Program taking(const std::string& name, uint32_t dtype, const std::vector<DimId>& dims) {
  return record([&](Recorder& r) {
    const uint32_t block = r.block("b", [&] {
      r.field("labels");
      r.output("x", r.field(name, dtype, dims));
    });
    r.chain("c", "", {block});
  });
}

std::string refusal(const std::string& name, uint32_t dtype, const std::vector<DimId>& dims) {
  try {
    check_fields(taking(name, dtype, dims));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Fields, ThatTheDataCannotGiveAreRefusedByName) {
  const std::vector<DimId> rows = {CHASSIS_DIM_BATCH}, tokens = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME};
  EXPECT_EQ(refusal("positions", CHASSIS_DTYPE_I32, tokens), "");
  const std::string unknown = refusal("pixels", CHASSIS_DTYPE_F32, tokens);
  EXPECT_HAS(unknown, "the model takes the field 'pixels' of a batch, which the data cannot give");
  EXPECT_HAS(unknown, "fields: input_ids, labels, positions, document_ids, each i32 [B, T]");
  EXPECT_HAS(refusal("positions", CHASSIS_DTYPE_F32, rows),
             "the model takes the field 'positions' as f32 [B], the data gives it as i32 [B, T]");
}

// A field of at most 6 patches of 3 channels, in a program that declares the dims.
struct Patches {
  static constexpr std::string_view kDims[] = {"patches", "channels"};
  BatchFieldSpec spec{"pixels", CHASSIS_DTYPE_F32, kDims, std::nullopt, true, nullptr};
  Program program;
  Field field{GraphValueType::kFloat32, {2, 3}};

  Patches() {
    program.dims = predeclared_dims();
    program.dims.insert(program.dims.end(), {{"patches", 6, DimKind::kBounded}, {"channels", 3}, {"other", 3}});
  }
  bool is_given() const { return chassis::is_given(program, field, spec); }
};

TEST(Fields, MustHaveTheTypeAndDimsOfTheTable) {
  EXPECT_TRUE(Patches().is_given());
  EXPECT_EQ(field_text(Patches().spec), "f32 [patches, channels]");
  Patches of;
  of.field.type = GraphValueType::kInt32;
  EXPECT_FALSE(of.is_given());
  of = {};
  of.field.dims = {2, 4};
  EXPECT_FALSE(of.is_given());
  of = {};
  of.field.dims = {2};
  EXPECT_FALSE(of.is_given());
  of = {};
  of.program.dims[2].kind = DimKind::kFixed;  // pieces append patches
  EXPECT_FALSE(of.is_given());
}

TEST(Fields, ArePlannedWithTheLargestSizes) {
  const NamedSizes sizes = largest_sizes(Patches().program, 2, 8);
  EXPECT_EQ(sizes, (NamedSizes{{"B", 2}, {"T", 8}, {"patches", 6}, {"channels", 3}, {"other", 3}}));
}

TEST(Fields, BecomeTensorsOfTheirType) {
  HostField field(*find_batch_field("labels"), {{"B", 2}, {"T", 3}});
  const Tensor labels = to_tensor(field, {});
  EXPECT_EQ(labels.dtype(), Dtype::i32);
  EXPECT_EQ(labels.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(labels.data_as<int32_t>()[5], kIgnoreLabel);
}

TEST(Fields, AreMadeOnlyIfTheModelTakesThem) {
  const Program program = taking("positions", CHASSIS_DTYPE_I32, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME});
  EXPECT_EQ(field_names(program), (std::vector<std::string>{"labels", "positions"}));
  const Fields made = empty_fields(program, 2, 8, {}), read = to_fields(Batch(2, 8, 0, field_names(program)), {});
  ASSERT_EQ(made.size(), 2u);
  ASSERT_EQ(read.size(), 2u);
  for (const auto& [name, tensor] : made) EXPECT_EQ(tensor.sizes(), read.at(name).sizes()) << name;
}

TEST(Padding, MayBeReadByOpsThatPluginsBring) {
  Program program = taking("positions", CHASSIS_DTYPE_I32, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME});
  EXPECT_EQ(op_that_may_read_padding(program), "");
  Op op;
  op.id = OpId("own/shift");
  op.inputs = op.outputs = {0};
  program.blocks.at(0).ops = {op};
  EXPECT_EQ(op_that_may_read_padding(program), "own/shift");
  program.blocks.at(0).ops.at(0).mixed_dims.emplace();  // none
  EXPECT_EQ(op_that_may_read_padding(program), "");
}

}  // namespace
}  // namespace chassis
