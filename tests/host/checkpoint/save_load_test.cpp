// Round trips: a load returns what was saved, bit for bit, on the same and other meshes, through buckets of any size.
#include "fixture.hpp"

namespace chassis {
namespace {

using namespace testing;

SavePlan save(const Model& model, const FormatPlugin& format, const std::string& parent, const std::string& name,
              const BucketPair& buckets, const MeshShape& mesh = {}, uint64_t max_file_bytes = 0) {
  SavePlanOptions options;
  options.max_file_bytes = max_file_bytes;
  const SavePlan plan = plan_save(model.save_tensors(), mesh, format, options);
  CheckpointWriter(format, buckets).save(plan, request_for(model, parent, name, 7, mesh));
  return plan;
}

void expect_loads(const Model& model, const FormatPlugin& format, const std::string& path, const BucketPair& buckets,
                  const MeshShape& mesh = {}) {
  CheckpointReader reader(path, format);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto loaded = load_all(reader, model.load_tensors(), buckets, mesh, rank);
    for (const Descriptor& d : model.descriptors) {
      if (!Layout(d, mesh).holds(rank)) continue;
      EXPECT_TRUE(same_bytes(loaded.at(d.fqn), model.local(d, mesh, rank))) << d.fqn << " on rank " << rank;
    }
  }
}

TEST(SaveAndLoad, AreBitExactInBothFormats) {
  const TemporaryDirectory dir;
  const BucketPair buckets(1 << 16);
  const Model model = small_model();
  for (const FormatPlugin* format : {&native(), &huggingface()}) {
    save(model, *format, dir.path(), format->name(), buckets);
    expect_loads(model, *format, dir / format->name(), buckets);
  }
  CheckpointReader reader(dir / "native", native());
  LoadResult result;
  load_all(reader, model.load_tensors(), buckets, {}, 0, &result);
  EXPECT_EQ(result.num_tensors, 6u);
  EXPECT_GT(result.num_bytes, 0u);
  EXPECT_EQ(result.verified_bytes, result.num_bytes);
  ASSERT_NE(reader.manifest(), nullptr);
  EXPECT_EQ(reader.manifest()->step, 7);
  EXPECT_TRUE(reader.manifest()->resumable);
  EXPECT_EQ(reader.find("layer.0.weight")->dtype, Dtype::bf16);
}

TEST(SaveAndLoad, HandleATensorMuchLargerThanABucket) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  Model model;
  model.add("big", Dtype::f32, {1000, 101})
      .add("odd", Dtype::u8, {4097})
      .add("wide", Dtype::i64, {513, 3})
      .add("tail", Dtype::bf16, {3});
  save(model, native(), dir.path(), "a", buckets);
  expect_loads(model, native(), dir / "a", buckets);
  save(model, huggingface(), dir.path(), "b", buckets, {}, 100'000);
  EXPECT_TRUE(fs::exists(dir / "b/model-00002-of-00002.safetensors"));
  expect_loads(model, huggingface(), dir / "b", buckets);
}

TEST(SaveAndLoad, CastOnTheWay) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  Model model;
  model.add("w", Dtype::f32, {3000});
  auto* values = model.wholes["w"].data_as<float>();
  for (int i = 0; i < 3000; ++i) values[i] = static_cast<float>(i) * 0.37f - 500.0f;
  std::vector<SaveTensor> tensors = model.save_tensors();
  tensors[0].disk_dtype = Dtype::bf16;
  const SavePlan plan = plan_save(tensors, {}, huggingface());
  EXPECT_EQ(plan.tensor_bytes, 6000u);
  CheckpointWriter(huggingface(), buckets).save(plan, request_for(model, dir.path(), "m"));
  CheckpointReader reader(dir / "m", huggingface());
  EXPECT_EQ(reader.find("w")->dtype, Dtype::bf16);
  LoadResult result;
  const auto loaded = load_all(reader, model.load_tensors(), buckets, {}, 0, &result);
  EXPECT_EQ(result.verified_bytes, 6000u);
  EXPECT_EQ(result.num_bytes, 6000u);
  EXPECT_TRUE(same_bytes(loaded.at("w"), model.wholes["w"].to(Dtype::bf16).to(Dtype::f32)));
}

Model sharded_model() {
  Model model;
  const auto with = [](const std::string& fqn, Dtype dtype, const Shape& shape, std::vector<Placement> placements) {
    Descriptor d = Descriptor::plain(fqn, dtype, shape);
    d.placements = std::move(placements);
    return d;
  };
  Descriptor embed =
      with("embed", Dtype::f32, {307, 4}, {Placement::dim_chunk({"tp"}, 0), Placement::dim_chunk({"dp"}, 0)});
  embed.padded_shape = {312, 4};
  model.add(embed);
  model.add(with("column", Dtype::bf16, {16, 6}, {Placement::dim_chunk({"tp"}, 0), Placement::dim_chunk({"dp"}, 0)}));
  model.add(with("zero3", Dtype::f32, {13, 7}, {Placement::flat_range({"dp"})}));
  model.add(with("norm", Dtype::f32, {11}, {}));
  model.add(with("step", Dtype::i64, {}, {}));
  return model;
}

TEST(SaveAndLoad, WorkFromAnyMeshToAnyOther) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  const Model model = sharded_model();
  const std::vector<MeshShape> meshes = {MeshShape({{"dp", 1}, {"tp", 1}}), MeshShape({{"dp", 2}, {"tp", 1}}),
                                         MeshShape({{"dp", 2}, {"tp", 2}}), MeshShape({{"dp", 3}, {"tp", 1}}),
                                         MeshShape({{"dp", 4}, {"tp", 2}})};
  for (size_t from = 0; from < meshes.size(); ++from) {
    const std::string name = "mesh" + std::to_string(from);
    save(model, native(), dir.path(), name, buckets, meshes[from]);
    for (const MeshShape& to : meshes) expect_loads(model, native(), dir / name, buckets, to);
  }
}

TEST(SaveAndLoad, GiveTheSameHuggingFaceFileFromEveryMesh) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  const Model model = sharded_model();
  save(model, huggingface(), dir.path(), "one", buckets, MeshShape({{"dp", 1}, {"tp", 1}}));
  for (const auto& [dp, tp] : std::vector<std::pair<int, int>>{{2, 1}, {2, 2}, {4, 2}, {3, 1}}) {
    const std::string name = "m" + std::to_string(dp) + std::to_string(tp);
    save(model, huggingface(), dir.path(), name, buckets, MeshShape({{"dp", dp}, {"tp", tp}}));
    EXPECT_EQ(read_file(dir / (name + "/model.safetensors")), read_file(dir / "one/model.safetensors")) << name;
  }
}

TEST(SaveAndLoad, ReadOnlyTheBytesThatARankHolds) {
  const TemporaryDirectory dir;
  const BucketPair buckets(1 << 16);
  Model model;
  Descriptor d = Descriptor::plain("w", Dtype::f32, {64, 32});
  d.placements = {Placement::dim_chunk({"dp"}, 0)};
  model.add(d);
  save(model, huggingface(), dir.path(), "m", buckets, MeshShape({{"dp", 1}}));
  CheckpointReader reader(dir / "m", huggingface());
  uint64_t total = 0;
  for (int rank = 0; rank < 8; ++rank) {
    LoadResult result;
    load_all(reader, model.load_tensors(), buckets, MeshShape({{"dp", 8}}), rank, &result);
    EXPECT_EQ(result.num_bytes, 64u * 32 * 4 / 8);
    total += result.num_bytes;
  }
  EXPECT_EQ(total, 64u * 32 * 4);
}

TEST(SaveAndLoad, CarryTextAndOtherFiles) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  const Model model = small_model();
  fs::create_directories(dir / "base");
  write_text(dir / "base/config.json", "{\"from\": \"base\"}");
  write_text(dir / "base/tokenizer.json", std::string(10'000, 't'));
  write_text(dir / "base/pytorch_model.bin", "never");
  SaveRequest request = request_for(model, dir.path(), "final");
  request.text_files = {{"config.json", "{\"from\": \"us\"}\n"}};
  request.carried_files = files_to_copy(dir / "base", {"config.json"});
  CheckpointWriter(huggingface(), buckets).save(plan_save(model.save_tensors(), {}, huggingface()), request);
  EXPECT_EQ(read_file(dir / "final/config.json"), "{\"from\": \"us\"}\n");
  EXPECT_EQ(read_file(dir / "final/tokenizer.json"), std::string(10'000, 't'));
  EXPECT_FALSE(fs::exists(dir / "final/pytorch_model.bin"));
  // A checkpoint with an edited text file still loads.
  write_text(dir / "final/config.json", "{}");
  expect_loads(model, huggingface(), dir / "final", buckets);
}

TEST(Load, ListsTensorsThatDoNotFit) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  const Model model = small_model();
  save(model, huggingface(), dir.path(), "m", buckets);
  Model other;
  other.add("embed.weight", Dtype::f32, {38, 8})
      .add("layer.0.weight", Dtype::f32, {5, 3})
      .add("layer.0.bias", Dtype::f32, {5});
  other.add("step", Dtype::i32, {}).add("new", Dtype::f32, {2, 2});
  CheckpointReader reader(dir / "m", huggingface());
  const std::string text = error_of([&] { load_all(reader, other.load_tensors(), buckets); });
  EXPECT_NE(text.find("1 missing:\n    new [2, 2]"), std::string::npos) << text;
  EXPECT_NE(text.find("2 with another shape or type:\n    embed.weight is [37, 8] on disk, [38, 8] in the model\n"
                      "    step is i64 on disk, i32 in the model"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("2 unexpected:\n    empty [0, 4]\n    mask [3]"), std::string::npos) << text;
}

TEST(Load, ListsAtMostTheRequestedNumber) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  Model model, none;
  for (int i = 0; i < 20; ++i) model.add("t" + std::to_string(i), Dtype::u8, {1});
  save(model, huggingface(), dir.path(), "m", buckets);
  CheckpointReader reader(dir / "m", huggingface());
  const std::string text = error_of([&] { load_all(reader, none.load_tensors(), buckets); });
  EXPECT_NE(text.find("20 unexpected:"), std::string::npos);
  EXPECT_NE(text.find("… and 12 more"), std::string::npos);
}

TEST(Load, SkipsOptionalAndExtraTensors) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  const Model model = small_model();
  save(model, huggingface(), dir.path(), "m", buckets);
  CheckpointReader reader(dir / "m", huggingface());
  std::vector<LoadTensor> tensors = {{model.descriptors[0], ""}, {Descriptor::plain("head", Dtype::f32, {2}), ""}};
  LoadOptions options;
  options.skip = [](const std::string&) { return true; };
  options.optional = [](const Descriptor& d) { return d.fqn == "head"; };
  const LoadResult result = reader.load(tensors, {}, buckets, model.locals(), options);
  EXPECT_EQ(result.num_tensors, 1u);
  EXPECT_EQ(result.absent, std::vector<std::string>{"head"});
}

TEST(Load, RefusesAnotherFormat) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  save(small_model(), huggingface(), dir.path(), "m", buckets);
  EXPECT_NE(error_of([&] { CheckpointReader(dir / "m", native()); }).find("is of format safetensors, not native"),
            std::string::npos);
}

TEST(CompareWithDirectory, NamesEveryDifference) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  const Model model = small_model();
  const SavePlan plan = save(model, huggingface(), dir.path(), "m", buckets);
  const CheckpointReader reader(dir / "m", huggingface());
  EXPECT_TRUE(compare_with_directory(plan, reader).empty());
  std::vector<SaveTensor> tensors = model.save_tensors();
  tensors[0].disk_name = "renamed";
  tensors[2].disk_dtype = Dtype::bf16;
  EXPECT_EQ(compare_with_directory(plan_save(tensors, {}, huggingface()), reader),
            (std::vector<std::string>{"renamed f32[37, 8] is not in the directory",
                                      "layer.0.bias would be bf16[5], it is f32[5]",
                                      "embed.weight f32[37, 8] would not be written"}));
}

TEST(Save, RefusesAValueThatOverflowsTheDtypeOfItsFile) {
  const Model model = small_model();
  const BucketPair buckets(4096);
  const auto said = [&](Dtype dtype, double value) {
    const TemporaryDirectory dir;
    std::vector<SaveTensor> tensors = model.save_tensors();
    tensors[0].disk_dtype = dtype;
    SaveRequest request = request_for(model, dir.path(), "m");
    request.tensors = [&](const Descriptor& d, int rank) {
      const Tensor tensor = model.local(d, {}, rank);
      if (d.fqn == tensors[0].descriptor.fqn) tensor.flat().narrow(0, 3, 1).fill(value);
      return tensor;
    };
    const SavePlan plan = plan_save(tensors, {}, huggingface());
    const std::string text = error_of([&] { CheckpointWriter(huggingface(), buckets).save(plan, request); });
    EXPECT_EQ(fs::is_empty(dir.path()), text != "no error");
    return text;
  };
  EXPECT_NE(said(Dtype::f16, 1e6).find("'embed.weight': the value 1000000.000000 overflows float16"), std::string::npos)
      << said(Dtype::f16, 1e6);
  EXPECT_EQ(said(Dtype::f16, 65000), "no error");
  EXPECT_EQ(said(Dtype::bf16, 1e6), "no error");
  EXPECT_NE(said(Dtype::bf16, 3.4e38).find("overflows bfloat16"), std::string::npos) << said(Dtype::bf16, 3.4e38);
}

TEST(Save, RefusesATensorThatIsNotAsDescribed) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  const Model model = small_model();
  SaveRequest request = request_for(model, dir.path(), "m");
  request.tensors = [](const Descriptor&, int) { return Tensor::zeros(std::vector<int64_t>{1}, Dtype::f32); };
  const std::string text = error_of(
      [&] { CheckpointWriter(native(), buckets).save(plan_save(model.save_tensors(), {}, native()), request); });
  EXPECT_NE(text.find("its descriptor says"), std::string::npos) << text;
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace chassis
