// The tensors of every stage, number of ranks and padding are read back; inconsistent files are refused.
#include "plugins/format/zero_import/checkpoint.hpp"

#include <gtest/gtest.h>

#include <map>

#include "torch_writer.hpp"

namespace zero_import {
namespace {

using namespace testing;

const Groups kGroups = {{{"embed", {13, 4}}, {"scalar", {}}, {"deep", {3, 2, 5, 2}}, {"row", {1, 7}}},
                        {{"norm", {5}}, {"bias", {1}}}};

struct Whole {
  std::vector<int64_t> shape;
  std::vector<float> values;
  std::vector<int> times;  // how often each element was found
};
struct Scanned {
  std::map<std::string, Whole> tensors;
  std::map<std::string, std::string> metadata;
  std::vector<std::string> warnings;
};

Scanned scanned(const Files& files) {
  Scanned out;
  const Source source = source_of(files);
  Sink sink;
  sink.tensor = [&](const FoundTensor& t) {
    Whole& whole = out.tensors[std::string(t.name)];
    size_t numel = 1, count = 1;
    for (const int64_t size : t.global_shape) numel *= static_cast<size_t>(size);
    for (const int64_t size : t.box_shape) count *= static_cast<size_t>(size);
    whole.shape = t.global_shape;
    whole.values.resize(numel);
    whole.times.resize(numel);
    ASSERT_EQ(t.num_bytes, count * sizeof(float));
    std::vector<float> values(count);
    source.read(t.file, t.offset, t.num_bytes, values.data());
    for (size_t i = 0; i < count; ++i) {  // position in the box → position in the tensor
      size_t rest = i, at = 0, stride = 1;
      for (size_t dim = t.box_shape.size(); dim-- > 0;) {
        const auto size = static_cast<size_t>(t.box_shape[dim]);
        at += (static_cast<size_t>(t.box_offset[dim]) + rest % size) * stride;
        rest /= size;
        stride *= static_cast<size_t>(t.global_shape[dim]);
      }
      ASSERT_LT(at, numel);
      whole.values[at] = values[i];
      ++whole.times[at];
    }
  };
  sink.metadata = [&](std::string_view key, std::string_view value) { out.metadata.emplace(key, value); };
  sink.warning = [&](std::string_view, std::string_view text) { out.warnings.emplace_back(text); };
  scan(source, sink);
  return out;
}

std::string defect_of(const Files& files) {
  try {
    scanned(files);
  } catch (const Defect& defect) {
    return defect.what();
  }
  return "nothing was wrong";
}

void expect_values(const Scanned& found, const std::string& name, const Parameter& parameter, float scale) {
  ASSERT_TRUE(found.tensors.contains(name)) << name;
  const Whole& whole = found.tensors.at(name);
  EXPECT_EQ(whole.shape, parameter.shape) << name;
  std::vector<float> expected = parameter.values();
  for (float& value : expected) value *= scale;
  EXPECT_EQ(whole.values, expected) << name;
  EXPECT_EQ(whole.times, std::vector<int>(expected.size(), 1)) << name;
}

TEST(ZeroCheckpoint, ReadsEveryTensorOfEveryStage) {
  for (const int stage : {1, 2, 3}) {
    for (const size_t ranks : {1, 2, 3, 4, 7}) {
      for (const size_t sub_group_elements : {size_t{1} << 20, size_t{11}}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", " + std::to_string(ranks) + " ranks, sub-groups of " +
                     std::to_string(sub_group_elements));
        CheckpointOptions options{ranks, stage, sub_group_elements, {{"frozen", {3, 5}}, {"also", {4}}}};
        const Scanned found = scanned(checkpoint_of(kGroups, options));
        for (const auto& group : kGroups) {
          for (const Parameter& p : group) {
            expect_values(found, p.name, p, 1);
            expect_values(found, p.name + ".exp_avg", p, 0.5f);
            expect_values(found, p.name + ".exp_avg_sq", p, 0.25f);
          }
        }
        for (const Parameter& p : options.frozen) expect_values(found, p.name, p, 1);
        EXPECT_EQ(found.tensors.at("inv_freq").values, (std::vector<float>{1, 2, 3}));
        EXPECT_EQ(found.tensors.at("unlisted").values, (std::vector<float>{8, 9}));
        EXPECT_EQ(found.tensors.size(), 3 * 6 + 2 + 2u);
        EXPECT_EQ(found.metadata.at("step"), "7");
        EXPECT_EQ(found.metadata.at("optimizer_step"), "7");
        EXPECT_EQ(found.metadata.at("zero_stage"), std::to_string(stage));
        EXPECT_EQ(found.metadata.at("tied lm_head.weight"), "embed");
        EXPECT_TRUE(found.warnings.empty());
      }
    }
  }
}

TEST(ZeroCheckpoint, ReadsFp16MastersAndWarnsThatTheLossScaleIsLeftOut) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    CheckpointOptions options{3, stage, 11, {}};
    options.dynamic_loss_scale = 256;
    const Files files = checkpoint_of(kGroups, options);
    ASSERT_TRUE(files.contains("global_step7/zero_pp_rank_2_mp_rank_00_optim_states.pt"));
    const Scanned found = scanned(files);
    for (const auto& group : kGroups)
      for (const Parameter& p : group) {
        expect_values(found, p.name, p, 1);
        expect_values(found, p.name + ".exp_avg", p, 0.5f);
      }
    ASSERT_EQ(found.warnings.size(), 1u);
    EXPECT_EQ(found.warnings[0], "the dynamic loss scale, 256, is left out: runs here do not scale the loss");
  }
}

TEST(ZeroCheckpoint, ReadsTheFolderOfAStepToo) {
  Files files;
  for (auto& [path, bytes] : checkpoint_of(kGroups, {}))
    if (path != "latest") files[path.substr(path.find('/') + 1)] = bytes;
  EXPECT_EQ(scanned(files).tensors.size(), 3 * 6 + 2u);
}

TEST(ZeroCheckpoint, CutsARangeIntoTheFewestBoxes) {
  EXPECT_EQ(boxes_of_range({4, 3}, 0, 12).size(), 1u);
  EXPECT_EQ(boxes_of_range({4, 3}, 3, 9).size(), 1u);
  EXPECT_EQ(boxes_of_range({4, 3}, 1, 11).size(), 3u);
  EXPECT_EQ(boxes_of_range({4, 3}, 1, 2).size(), 1u);
  EXPECT_EQ(boxes_of_range({4, 3}, 5, 5).size(), 0u);
  EXPECT_EQ(boxes_of_range({}, 0, 1).size(), 1u);
  EXPECT_EQ(boxes_of_range({3, 2, 4}, 1, 23).size(), 5u);
}

TEST(ZeroCheckpoint, RefusesInconsistentFiles) {
  const auto without = [](const std::string& part, CheckpointOptions options = {}) {
    Files files = checkpoint_of(kGroups, options);
    std::erase_if(files, [&](const auto& file) { return file.first.find(part) != file.first.npos; });
    return defect_of(files);
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(without("optim_states"), "no zero_pp_rank_…_optim_states.pt");
  has(without("rank_1"), "the run had 2 ranks, but there are files for 1");
  has(without("rank_0_mp"), "the optimizer's file of rank 0 is missing");
  has(without("model_states"), "the model's file 'mp_rank_00_model_states.pt' is missing");
  has(without("zero_pp_rank_1_mp_rank_00_model", {2, 3, 64, {{"frozen", {3}}}}),
      "'zero_pp_rank_1_mp_rank_00_model_states.pt' is missing");

  const auto with = [](const std::string& path, const std::string& bytes) {
    Files files = checkpoint_of(kGroups, {});
    files[path] = bytes;
    return defect_of(files);
  };
  has(with("latest", "global_step9"), "names 'global_step9', but there is no such folder");
  has(with("latest", "../etc"), "there is no such folder");
  has(with("global_step7/layer_00-model_states.pt", ""), "pipeline or expert parallel");
  has(with("global_step7/expp_rank_0_mp_rank_00_optim_states.pt", ""), "pipeline or expert parallel");
  has(with("global_step7/zero_pp_rank_0_mp_rank_01_optim_states.pt", ""), "is from a model parallel run");
  has(with("global_step7/odd_optim_states.pt", ""), "is not the name of a ZeRO optimizer's file");
  has(with("global_step7/zero_pp_rank_1_mp_rank_00_optim_states.pt", ""), "two files of rank 1");

  // A model file whose parameters differ from the optimizer's.
  const auto mixed = [](const Groups& groups, CheckpointOptions options) {
    Files files = checkpoint_of(kGroups, options), others = checkpoint_of(groups, options);
    for (auto& [path, bytes] : others)
      if (path.find("model_states") != path.npos) files[path] = bytes;
    return defect_of(files);
  };
  Groups grown = kGroups, shrunk = kGroups;
  grown[0].push_back({"more", {40}});
  shrunk[0].pop_back();
  for (const int stage : {2, 3}) {
    has(mixed(grown, {2, stage, 1 << 20, {}}), "'more' would be elements");
    has(mixed(shrunk, {2, stage, 1 << 20, {}}), "its p");
  }
  has(mixed({kGroups[0]}, {}), "1 groups of parameters, the optimizer 2");
}

// After any bit flip in a small checkpoint, the reader throws a Defect or finds only boxes inside their files.
TEST(ZeroCheckpoint, NeverReadsOutsideAFileAfterABitFlip) {
  const Files whole = checkpoint_of({{{"a", {3, 2}}, {"b", {4}}}}, {2, 3, 4, {{"frozen", {3}}}});
  size_t num_refused = 0, num_read = 0;
  for (const auto& [path, bytes] : whole) {
    for (size_t at = 0; at < bytes.size(); ++at) {
      Files files = whole;
      files[path][at] = static_cast<char>(bytes[at] ^ (1 << at % 8));
      const Source source = source_of(files);
      Sink sink;
      sink.tensor = [&](const FoundTensor& t) {
        ASSERT_LE(t.offset, source.files[t.file].num_bytes);
        ASSERT_LE(t.num_bytes, source.files[t.file].num_bytes - t.offset);
      };
      sink.metadata = sink.warning = [](std::string_view, std::string_view) {};
      try {
        scan(source, sink);
        ++num_read;
      } catch (const Defect&) {
        ++num_refused;
      }
    }
  }
  EXPECT_GT(num_refused, num_read);  // still readable: flips in values, padding and time stamps
}

}  // namespace
}  // namespace zero_import
