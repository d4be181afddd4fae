// A plan that cannot be saved is refused before anything is written.
#include "host/checkpoint/save_plan.hpp"

#include "fixture.hpp"

namespace chassis {
namespace {

using namespace testing;

std::string plan_error(const std::vector<SaveTensor>& tensors, const MeshShape& mesh = {},
                       const FormatPlugin& format = native()) {
  return error_of([&] { plan_save(tensors, mesh, format); });
}

Descriptor sharded(const std::string& fqn, const Shape& shape, Placement placement) {
  Descriptor d = Descriptor::plain(fqn, Dtype::f32, shape);
  d.placements = {std::move(placement)};
  return d;
}

TEST(SavePlan, PlacesEveryTensorOnce) {
  const SavePlan plan = plan_save(small_model().save_tensors(), {}, native());
  EXPECT_EQ(plan.tensors.size(), 6u);
  EXPECT_EQ(plan.boxes.size(), 6u);
  EXPECT_EQ(plan.tensor_bytes, 37u * 8 * 4 + 5 * 3 * 2 + 5 * 4 + 8 + 0 + 3);
  EXPECT_EQ(plan.bytes_of_rank(0), plan.tensor_bytes);
  EXPECT_EQ(plan.file_bytes, plan.tensor_bytes + plan.largest_header());
  EXPECT_EQ(plan.text(), "6 tensors, 1.22 KiB in 1 file of format native");
}

TEST(SavePlan, IsTheSameOnEveryRankAndForEveryCall) {
  const MeshShape mesh({{"dp_shard", 4}});
  Model model;
  model.add(sharded("a", {10, 3}, Placement::dim_chunk({"dp_shard"}, 0)))
      .add(sharded("b", {7}, Placement::dim_chunk({"dp_shard"}, 0)));
  const SavePlan a = plan_save(model.save_tensors(), mesh, native()),
                 b = plan_save(model.save_tensors(), mesh, native());
  ASSERT_EQ(a.layout.files.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(a.layout.files[i].header, b.layout.files[i].header);
  EXPECT_EQ(a.boxes.size(), 8u);
}

TEST(SavePlan, NeverSeesPadding) {
  const MeshShape mesh({{"tp", 8}});
  Descriptor d = Descriptor::plain("embed_tokens.weight", Dtype::bf16, {128256, 2});
  d.padded_shape = {128512, 2};
  d.placements = {Placement::dim_chunk({"tp"}, 0)};
  const SavePlan plan = plan_save({SaveTensor::plain(d)}, mesh, huggingface());
  EXPECT_EQ(plan.tensor_bytes, 128256u * 2 * 2);
  int64_t rows = 0;
  for (const DiskBox& box : plan.boxes) {
    EXPECT_EQ(box.global_shape, (Shape{128256, 2}));
    rows += box.box.sizes()[0];
  }
  EXPECT_EQ(rows, 128256);
}

TEST(SavePlan, RefusesATensorWithAGap) {
  const MeshShape mesh({{"dp", 2}});
  Descriptor d = Descriptor::plain("exp_avg", Dtype::f32, {8});
  d.placements = {Placement::flat_ranges({"dp"}, {{0, 4}, {5, 3}})};
  const std::string text = plan_error({SaveTensor::plain(d)}, mesh);
  EXPECT_NE(text.find("exp_avg"), std::string::npos) << text;
}

TEST(SavePlan, RefusesTwoTensorsOfOneNameOnDisk) {
  std::vector<SaveTensor> tensors = small_model().save_tensors();
  tensors[1].disk_name = "embed.weight";
  const std::string text = plan_error(tensors);
  EXPECT_NE(text.find("two tensors are called 'embed.weight' on disk: 'embed.weight' and 'layer.0.weight'"),
            std::string::npos)
      << text;
}

TEST(SavePlan, RefusesNamesThatTheFormatCannotHold) {
  std::vector<SaveTensor> tensors = small_model().save_tensors();
  for (const char* name : {"../../etc/passwd", "/abs", "a\nb", "__metadata__", "\xff"}) {
    tensors[0].disk_name = name;
    EXPECT_NE(plan_error(tensors), "no error") << name;
  }
  tensors[0].disk_name = std::string("nul\0name", 8);
  EXPECT_NE(plan_error(tensors).find("control character"), std::string::npos);
}

TEST(SavePlan, RefusesHeadersThatOtherReadersRefuse) {
  std::vector<SaveTensor> tensors;
  for (int i = 0; i < 30; ++i) {
    tensors.push_back(
        SaveTensor::plain(Descriptor::plain(std::string(1'000'000, 'x') + std::to_string(i), Dtype::u8, {1})));
  }
  EXPECT_NE(plan_error(tensors, {}, huggingface()).find("other readers refuse more than 25000000"), std::string::npos);
}

TEST(SavePlan, StoresACompositeAsItsComponents) {
  Descriptor d = Descriptor::plain("q.weight", Dtype::bf16, {64, 128});
  d.components = {Component::per_unit("", Dtype::u8, 64, 32), Component::per_unit(".absmax", Dtype::f32, 64, 1),
                  Component::whole(".quant_map", Dtype::f32, {16})};
  const SavePlan plan = plan_save({SaveTensor::plain(d)}, {}, native());
  ASSERT_EQ(plan.tensors.size(), 3u);
  EXPECT_EQ(plan.tensors[0].disk_name, "q.weight");
  EXPECT_EQ(plan.tensors[1].disk_name, "q.weight.absmax");
  EXPECT_EQ(plan.tensor_bytes, 64u * 128 / 2 + 128 * 4 + 64);
}

TEST(SavePlan, CutsFlatRangesIntoBoxesOfSeveralFiles) {
  const MeshShape mesh({{"dp", 3}});
  Model model;
  model.add(sharded("w", {5, 7}, Placement::flat_range({"dp"})));
  const SavePlan plan = plan_save(model.save_tensors(), mesh, native());
  EXPECT_GT(plan.boxes.size(), 3u);
  EXPECT_GT(plan.layout.files.size(), 3u);
  EXPECT_EQ(plan.tensor_bytes, 35u * 4);
  // The same boxes are contiguous in the whole tensor, so they fit into one Hugging Face file.
  EXPECT_EQ(plan_save(model.save_tensors(), mesh, huggingface()).layout.files.size(), 1u);
}

TEST(SavePlan, HandlesAHundredThousandTensors) {
  std::vector<SaveTensor> tensors;
  for (int i = 0; i < 100'000; ++i)
    tensors.push_back(SaveTensor::plain(Descriptor::plain("t" + std::to_string(i), Dtype::u8, {1})));
  const SavePlan plan = plan_save(tensors, {}, native());
  EXPECT_EQ(plan.boxes.size(), 100'000u);
}

}  // namespace
}  // namespace chassis
