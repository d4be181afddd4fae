// Every kind of damage is found, and the error names the tensor.
#include <random>

#include "fixture.hpp"
#include "host/base/hash.hpp"
#include "host/checkpoint/inspect.hpp"

namespace chassis {
namespace {

using namespace testing;

struct Saved {
  TemporaryDirectory dir;
  BucketPair buckets{4096};
  Model model = small_model();
  std::string path;

  explicit Saved(const FormatPlugin& format = native(), uint64_t max_file_bytes = 0) : path(dir / "step-000001") {
    SaveRequest request = request_for(model, dir.path(), "step-000001", 1);
    request.state = {{"rng", "abc"}};
    CheckpointWriter(format, buckets).save(plan_save(model.save_tensors(), {}, format, {{}, max_file_bytes}), request);
  }
  std::string shard() const { return path + "/sharded/shard-00001-model-00001-of-00001.safetensors"; }
  // Empty if nothing is wrong.
  std::string load_error(const FormatPlugin& format = native()) {
    try {
      CheckpointReader reader(path, format);
      load_all(reader, model.load_tensors(), buckets);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kStorage) << error.what();
      return error.what();
    }
    return "";
  }
};

void flip(const std::string& path, uint64_t byte, int bit) {
  std::string bytes = read_file(path);
  bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(Verify, PassesAnIntactCheckpoint) {
  const Saved saved;
  const VerifyResult result = verify_checkpoint(saved.path, saved.buckets);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.num_tensors, 6u);
  EXPECT_EQ(result.num_files, 1u);
}

TEST(Verify, FollowsNoLinkInACheckpoint) {
  for (const bool of_manifest : {true, false}) {
    Saved saved;
    const std::string file = of_manifest ? saved.path + "/manifest.json" : saved.shard();
    const std::string moved = saved.dir / "moved";
    fs::rename(file, moved);
    fs::create_symlink(moved, file);
    EXPECT_NE(saved.load_error().find("is a link to '" + moved + "', expected a file"), std::string::npos)
        << saved.load_error();
  }
}

TEST(Verify, NamesTheTensorOfEveryFlippedBit) {
  Saved saved;
  CheckpointReader reader(saved.path, native());
  const auto boxes = reader.manifest()->boxes;
  std::mt19937 random(3);
  for (const auto& entry : boxes) {
    for (int round = 0; entry.box.num_bytes() > 0 && round < 4; ++round) {
      const uint64_t byte = entry.place.offset + random() % entry.box.num_bytes();
      const int bit = static_cast<int>(random() % 8);
      flip(saved.shard(), byte, bit);
      const VerifyResult result = verify_checkpoint(saved.path, saved.buckets);
      ASSERT_EQ(result.defects.size(), 1u);
      EXPECT_NE(result.defects[0].find("tensor '" + entry.box.name + "' is damaged"), std::string::npos)
          << result.defects[0];
      const std::string text = saved.load_error();
      EXPECT_NE(text.find("tensor '" + entry.box.name + "'"), std::string::npos) << text;
      flip(saved.shard(), byte, bit);
    }
  }
  EXPECT_EQ(saved.load_error(), "");
}

TEST(Verify, FindsTenThousandRandomFlips) {
  Saved saved;
  CheckpointReader reader(saved.path, native());
  const auto boxes = reader.manifest()->boxes;
  std::string bytes = read_file(saved.shard());
  std::mt19937 random(5);
  for (int flips = 0; flips < 10'000;) {
    const auto& entry = boxes[random() % boxes.size()];
    if (entry.box.num_bytes() == 0) continue;
    ++flips;
    const uint64_t at = entry.place.offset + random() % entry.box.num_bytes();
    const char bit = static_cast<char>(1 << random() % 8);
    bytes[at] = static_cast<char>(bytes[at] ^ bit);
    File file = File::open_nofollow(saved.shard());
    file.pwrite_exact(&bytes[at], 1, at);
    const VerifyResult result = verify_checkpoint(saved.path, saved.buckets);
    ASSERT_EQ(result.defects.size(), 1u) << entry.box.name << " byte " << at;
    ASSERT_NE(result.defects[0].find("tensor '" + entry.box.name + "' is damaged"), std::string::npos)
        << result.defects[0];
    bytes[at] = static_cast<char>(bytes[at] ^ bit);
    file.pwrite_exact(&bytes[at], 1, at);
  }
  EXPECT_TRUE(verify_checkpoint(saved.path, saved.buckets).ok());
}

TEST(Verify, FindsEveryFlippedByteOfHeaderAndManifest) {
  Saved saved;
  const uint64_t header_bytes = read_file(saved.shard()).size() - (37 * 8 * 4 + 30 + 20 + 8 + 3);
  for (uint64_t byte = 0; byte < header_bytes; byte += 3) {
    flip(saved.shard(), byte, static_cast<int>(byte % 8));
    EXPECT_FALSE(verify_checkpoint(saved.path, saved.buckets).ok()) << byte;
    flip(saved.shard(), byte, static_cast<int>(byte % 8));
  }
  const std::string manifest = saved.path + "/manifest.json";
  const uint64_t manifest_bytes = read_file(manifest).size();
  for (uint64_t byte = 0; byte < manifest_bytes; ++byte) {
    flip(manifest, byte, static_cast<int>(byte % 8));
    EXPECT_NE(saved.load_error(), "") << byte;
    EXPECT_NE(error_of([&] { verify_checkpoint(saved.path, saved.buckets); }), "no error") << byte;
    flip(manifest, byte, static_cast<int>(byte % 8));
  }
  EXPECT_EQ(saved.load_error(), "");
}

TEST(Load, ReportsEveryFlippedByteOfHeaderAndManifestAsDamage) {
  Saved saved;
  const auto is_damaged = [&] {
    try {
      CheckpointReader reader(saved.path, native());
    } catch (const DamagedCheckpoint&) {
      return true;
    }
    return false;
  };
  ASSERT_FALSE(is_damaged());
  const uint64_t header_bytes = read_file(saved.shard()).size() - (37 * 8 * 4 + 30 + 20 + 8 + 3);
  for (uint64_t byte = 0; byte < header_bytes; ++byte) {
    flip(saved.shard(), byte, static_cast<int>(byte % 8));
    EXPECT_TRUE(is_damaged()) << byte;
    flip(saved.shard(), byte, static_cast<int>(byte % 8));
  }
  const std::string manifest = saved.path + "/manifest.json";
  const uint64_t manifest_bytes = read_file(manifest).size();
  for (uint64_t byte = 0; byte < manifest_bytes; ++byte) {
    flip(manifest, byte, static_cast<int>(byte % 8));
    EXPECT_TRUE(is_damaged()) << byte;
    flip(manifest, byte, static_cast<int>(byte % 8));
  }
}

// Other values of an index, such as its total size, do not affect a load.
TEST(Load, NeverLoadsOtherTensorsFromADamagedIndex) {
  const Saved saved(huggingface(), 500);
  const std::string index = saved.path + "/model.safetensors.index.json";
  const uint64_t index_bytes = read_file(index).size();
  int num_refused = 0;
  for (uint64_t byte = 0; byte < index_bytes; ++byte) {
    flip(index, byte, static_cast<int>(byte % 7));
    EXPECT_FALSE(verify_checkpoint(saved.path, saved.buckets).ok()) << byte;
    try {
      CheckpointReader reader(saved.path, huggingface());
      for (const auto& [name, tensor] : load_all(reader, saved.model.load_tensors(), saved.buckets))
        EXPECT_TRUE(same_bytes(tensor, saved.model.wholes.at(name))) << byte;
    } catch (const DamagedCheckpoint&) {
      ++num_refused;
    }
    flip(index, byte, static_cast<int>(byte % 7));
  }
  EXPECT_GT(num_refused, static_cast<int>(index_bytes / 2));
}

TEST(Load, FindsTruncationAtEveryLength) {
  Saved saved;
  const std::string whole = read_file(saved.shard());
  for (uint64_t size = 0; size < whole.size(); size += 37) {
    std::ofstream(saved.shard(), std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    EXPECT_NE(saved.load_error(), "") << size;
    EXPECT_FALSE(verify_checkpoint(saved.path, saved.buckets).ok());
  }
}

TEST(Load, FindsTruncationWithoutAManifestToo) {
  Saved saved(huggingface());
  fs::remove(saved.path + "/manifest.json");
  const std::string file = saved.path + "/model.safetensors", whole = read_file(file);
  EXPECT_EQ(saved.load_error(huggingface()), "");
  for (uint64_t size = 0; size < whole.size(); size += 41) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    EXPECT_NE(saved.load_error(huggingface()), "") << size;
  }
  std::ofstream(file, std::ios::binary | std::ios::trunc) << whole << "x";
  EXPECT_NE(saved.load_error(huggingface()).find("trailing bytes"), std::string::npos);
}

TEST(Load, FindsFilesOfAnotherCheckpoint) {
  Saved a, b;
  Model other;
  other.add("embed.weight", Dtype::f32, {37, 8})
      .add("layer.0.weight", Dtype::bf16, {5, 3})
      .add("layer.0.bias", Dtype::f32, {5});
  other.add("step", Dtype::i64, {}).add("empty", Dtype::f32, {0, 4}).add(Descriptor::plain("mask", Dtype::u8, {3}), 99);
  fs::remove_all(b.path);
  CheckpointWriter(native(), b.buckets)
      .save(plan_save(other.save_tensors(), {}, native()), request_for(other, b.dir.path(), "step-000001"));
  fs::copy_file(b.shard(), a.shard(), fs::copy_options::overwrite_existing);
  EXPECT_NE(a.load_error().find("tensor 'mask'"), std::string::npos);
}

TEST(Load, FindsAMissingShard) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  const MeshShape mesh({{"dp", 4}});
  Model model;
  Descriptor d = Descriptor::plain("w", Dtype::f32, {16, 4});
  d.placements = {Placement::dim_chunk({"dp"}, 0)};
  model.add(d);
  CheckpointWriter(native(), buckets)
      .save(plan_save(model.save_tensors(), mesh, native()), request_for(model, dir.path(), "c", 1, mesh));
  fs::remove(dir / "c/sharded/shard-00004-model-00001-of-00001.safetensors");
  EXPECT_NE(error_of([&] { CheckpointReader(dir / "c", native()); }).find("is missing"), std::string::npos);
  fs::remove(dir / "c/manifest.json");  // without it the global shape still shows the missing shard
  const std::string text = error_of([&] { CheckpointReader(dir / "c", native()); });
  EXPECT_NE(text.find("has incomplete tensors"), std::string::npos) << text;
  EXPECT_NE(text.find("'w'"), std::string::npos) << text;
}

TEST(Manifest, SurvivesARoundTrip) {
  const Saved saved;
  SourceDirectory directory(saved.path);
  const CheckpointManifest manifest = CheckpointManifest::read(directory);
  EXPECT_EQ(manifest.state["rng"], "abc");
  EXPECT_EQ(CheckpointManifest::parse(manifest.dump(), "x").dump(), manifest.dump());
  EXPECT_EQ(manifest.boxes.size(), 6u);
  EXPECT_EQ(manifest.format, "native");
}

TEST(Manifest, RefusesInvalidValuesEvenWithAValidChecksum) {
  CheckpointManifest manifest;
  manifest.format = "native";
  manifest.files = {{"f", 100, 0}};
  CheckpointManifest::BoxEntry entry;
  entry.box = {"t", Dtype::f32, {4}, Box::whole({4}), 0};
  manifest.boxes = {entry};
  EXPECT_EQ(error_of([&] { CheckpointManifest::parse(manifest.dump(), "m"); }), "no error");
  const auto refused = [&](auto change) {
    CheckpointManifest broken = manifest;
    change(broken);
    return error_of([&] { CheckpointManifest::parse(broken.dump(), "m"); });
  };
  EXPECT_NE(refused([](auto& m) { m.files[0].path = "../f"; }).find("has an invalid path or size"), std::string::npos);
  EXPECT_NE(refused([](auto& m) { m.files.push_back(m.files[0]); }).find("has an invalid path or size"),
            std::string::npos);
  EXPECT_NE(refused([](auto& m) { m.boxes[0].place.file = 1; }).find("has no place"), std::string::npos);
  EXPECT_NE(refused([](auto& m) { m.boxes[0].place.offset = 90; }).find("extends past the end"), std::string::npos);
  EXPECT_NE(refused([](auto& m) { m.boxes[0].box.box.end = {5}; }).find("does not lie inside it"), std::string::npos);
  EXPECT_NE(refused([](auto& m) { m.boxes[0].box.global_shape = {int64_t{1} << 40, int64_t{1} << 40}; }), "no error");
}

// The text with a correct checksum.
std::string signed_text(std::string text) {
  const size_t at = text.find("\"crc32c\": \"") + 11;
  text.replace(at, 8, "00000000");
  char hex[9];
  std::snprintf(hex, sizeof hex, "%08x", crc32c(0, text.data(), text.size()));
  return text.replace(at, 8, hex);
}

TEST(Manifest, NamesTheKeyOfAValueOfAWrongType) {
  CheckpointManifest manifest;
  manifest.format = "native";
  manifest.created = "now";
  manifest.mesh = MeshShape({{"dp", 2}});
  const std::string whole = manifest.dump();
  const auto refusal = [&](const std::string& from, const std::string& to) -> std::string {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    try {
      CheckpointManifest::parse(signed_text(text), "m");
    } catch (const DamagedCheckpoint& damage) {
      return damage.what();
    }
    return "not reported as damage";
  };
  const auto expect = [&](const std::string& from, const std::string& to, const std::string& text) {
    const std::string message = refusal(from, to);
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  expect("\"step\": 0", "\"step\": null", "m: 'step' is missing");
  expect("\"step\": 0", "\"step\": 1e400", "1e400");
  expect("\"step\": 0", "\"step\": -1", "m: 'step' is -1, expected 0 or more");
  expect("\"state\": {}", "\"state\": {\"step\": 3}", "m: 'step' is 0, but the 'state' is of step 3");
  expect("\"about\": {}", "\"about\": []", "m: 'about' is not an object, but array");
  expect("\"about\": {}", "\"about\": {\"names\": 3}", "m: 'about': 'names' must be a string");
  expect("\"state\": {}", "\"state\": 1", "m: 'state' is not an object, but number");
  expect("{\"dp\":2}", "{\"dp\":-2}", "'dp' is -2, which is not a valid size of an axis");
  expect("{\"dp\":2}", "{\"dp\":4294967297}", "'dp' is 4294967297, which is not a valid size of an axis");
  expect("\"now\"", "\"\xff\"", "m:");
}

// An older release must not report the checkpoints of a newer one as damaged.
TEST(Manifest, OfALaterVersionIsNotDamage) {
  std::string text = CheckpointManifest{}.dump();
  text.replace(text.find(": 1,") + 2, 1, "2");
  EXPECT_THROW(CheckpointManifest::parse(text, "m"), DamagedCheckpoint) << "a flipped bit";
  try {
    CheckpointManifest::parse(signed_text(text), "m");
    ADD_FAILURE() << "was read";
  } catch (const DamagedCheckpoint& damage) {
    ADD_FAILURE() << damage.what();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("'m' has manifest version 2; this release reads 1"), std::string::npos) << message;
  }
}

TEST(Inspect, ShowsTheStatusOfEachCheckpoint) {
  const Saved saved;
  EXPECT_NE(checkpoint_table(list_checkpoints(saved.dir.path()))[0].find("resumable, not verified"), std::string::npos);
  fs::create_directory_symlink("step-000003", saved.dir / "step-000003");
  fs::create_directories(saved.dir / "step-000002");
  const auto lines = checkpoint_table(list_checkpoints(saved.dir.path()));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[1].find("damaged: it has no manifest.json"), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find("unreadable: "), std::string::npos) << lines[2];
}

TEST(Inspect, ListsDescribesAndCompares) {
  const Saved saved;
  const std::vector<CheckpointInfo> all = list_checkpoints(saved.dir.path());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].num_tensors, 6);
  EXPECT_TRUE(all[0].resumable);
  EXPECT_NE(checkpoint_table(all)[0].find("step-000001"), std::string::npos);
  EXPECT_NE(describe_checkpoint(saved.path, true).back().find("mask  u8[3]"), std::string::npos);

  Model other = small_model();
  other.add(Descriptor::plain("layer.0.bias", Dtype::f32, {5}), 9);  // other values
  other.descriptors.erase(other.descriptors.begin() + 2);
  other.descriptors.erase(other.descriptors.begin() + 4);  // mask
  other.add("new", Dtype::u8, {2}).add("embed.weight", Dtype::f32, {38, 8});
  other.descriptors.erase(other.descriptors.begin());
  const BucketPair buckets(4096);
  CheckpointWriter(native(), buckets)
      .save(plan_save(other.save_tensors(), {}, native()), request_for(other, saved.dir.path(), "other"));
  const CheckpointDiff diff = diff_checkpoints(saved.path, saved.dir / "other");
  std::vector<std::string> lines;
  for (const TensorDifference& tensor : diff.tensors) lines.push_back(tensor.line());
  EXPECT_EQ(lines,
            (std::vector<std::string>{"! embed.weight f32[37, 8] → f32[38, 8]",
                                      "~ layer.0.bias f32[5] has different contents", "- mask u8[3]", "+ new u8[2]"}));
  EXPECT_EQ(diff.first.num_tensors, 6);
  EXPECT_TRUE(diff_checkpoints(saved.path, saved.path).tensors.empty());
}

}  // namespace
}  // namespace chassis
