// `chassis ckpt import-zero` from end to end: imports every tensor of every stage. Hostile files and crashing readers
// give an error, in a separate process, and leave no files.
#include <regex>

#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/inspect.hpp"
#include "tests/host/checkpoint/fixture.hpp"
#include "tests/support/process.hpp"
#include "torch_writer.hpp"

namespace chassis {
namespace {

using namespace testing;
namespace zero = zero_import::testing;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

const zero::Groups kGroups = {{{"embed", {13, 4}}, {"scalar", {}}, {"deep", {3, 2, 5, 2}}}, {{"norm", {5}}}};

void write_files(const std::string& directory, const zero::Files& files) {
  for (const auto& [path, bytes] : files) {
    fs::create_directories(fs::path(directory + "/" + path).parent_path());
    write_text(directory + "/" + path, bytes);
  }
}

class Import : public ::testing::Test {
 protected:
  test::Outcome run(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {CHASSIS_TEST_BINARY_DIR "/bin/chassis", "ckpt", "import-zero", source_, out_};
    command.insert(command.end(), more.begin(), more.end());
    return test::run_process(command, directory_.path());
  }
  test::Outcome run_on(const zero::Files& files, const std::vector<std::string>& more = {}) {
    fs::remove_all(source_);
    write_files(source_, files);
    return run(more);
  }
  // Also checks that a failed import leaves no files, hidden or not.
  void expect_refusal(const test::Outcome& outcome, const std::string& part) {
    EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
    EXPECT_NE(outcome.output.find(part), std::string::npos) << outcome.output;
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      EXPECT_TRUE(entry.path() == source_ || entry.path().filename() == "output.txt") << entry.path();
  }
  void expect_values(const std::string& name, const zero::Parameter& parameter, float scale) {
    std::vector<float> expected = parameter.values(), found(expected.size());
    for (float& value : expected) value *= scale;
    const BucketPair buckets(BucketPair::kMinBytes);
    CheckpointReader reader(out_, fs::exists(out_ + "/sharded") ? native() : huggingface());
    const Shape shape{std::span<const int64_t>(parameter.shape)};
    LoadOptions options;
    options.skip = [](const std::string&) { return true; };
    const auto loaded = [&] {
      Tensor t;
      reader.load(
          std::vector<LoadTensor>{{Descriptor::plain(name, Dtype::f32, shape), ""}}, {}, buckets,
          [&](const Descriptor& d, int) {
            return t = Tensor::empty(std::vector<int64_t>(d.global_shape.begin(), d.global_shape.end()), d.dtype);
          },
          options);
      return t;
    }();
    std::memcpy(found.data(), loaded.data(), loaded.num_bytes());
    EXPECT_EQ(found, expected) << name;
  }

  const TemporaryDirectory directory_;
  const std::string source_ = directory_ / "from", out_ = directory_ / "to";
};

TEST_F(Import, ImportsEveryTensorOfEveryStage) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const auto files = zero::checkpoint_of(kGroups, {3, stage, 64, {{"frozen", {3, 5}}}});
    const test::Outcome plain = run_on(files);
    ASSERT_EQ(plain.exit_code, 0) << plain.output;
    EXPECT_NE(plain.output.find("8 optimizer states are left out; --checkpoint keeps them"), std::string::npos)
        << plain.output;
    EXPECT_NE(plain.output.find("weights only, not resumable"), std::string::npos) << plain.output;
    for (const auto& group : kGroups)
      for (const zero::Parameter& p : group) expect_values(p.name, p, 1);
    expect_values("frozen", {"frozen", {3, 5}}, 1);
    EXPECT_TRUE(verify_checkpoint(out_, BucketPair(BucketPair::kMinBytes)).ok());

    const test::Outcome whole = run_on(files, {"--checkpoint"});
    ASSERT_EQ(whole.exit_code, 0) << whole.output;
    for (const auto& group : kGroups) {
      for (const zero::Parameter& p : group) {
        expect_values(p.name, p, 1);
        expect_values(p.name + ".exp_avg", p, 0.5f);
        expect_values(p.name + ".exp_avg_sq", p, 0.25f);
      }
    }
    SourceDirectory made(out_);
    const CheckpointManifest manifest = CheckpointManifest::read(made);
    EXPECT_EQ(manifest.step, 7);
    EXPECT_TRUE(manifest.resumable);
  }
}

// One tensor of 72 MiB, in three partitions: the process holds two buckets of 16 MiB and no tensor.
TEST_F(Import, HoldsNoTensorInMemory) {
  if (kIsSanitized) GTEST_SKIP() << "shadow memory would be counted too";
  const auto peak_mib = [&](int64_t rows) {
    const test::Outcome outcome = run_on(zero::checkpoint_of({{{"big", {rows, 1024}}}}, {3, 2, 1 << 30, {}}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::smatch found;
    EXPECT_TRUE(std::regex_search(outcome.output, found, std::regex("process peak ([0-9.]+) MiB"))) << outcome.output;
    return found.empty() ? 0.0 : std::stod(found[1]);
  };
  const double small = peak_mib(24), large = peak_mib(18 << 10);
  EXPECT_LT(large - small, 2 * 16 + 16) << small << " MiB, then " << large << " MiB";
}

TEST_F(Import, RefusesHostileFilesWithAReason) {
  const std::string optimizer = "global_step7/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const auto with = [&](const std::string& bytes) {
    zero::Files files = zero::checkpoint_of(kGroups, {});
    files[optimizer] = bytes;
    return run_on(files);
  };
  const std::string evidence = directory_ / "owned";
  const std::string command = zero::call(zero::global("os", "system"), zero::tuple({zero::text("touch " + evidence)}));
  const test::Outcome attack = with(zero::zip_of({{"archive/data.pkl", zero::pickle_of(command)}}));
  expect_refusal(attack, "the global 'os.system' is not one of those that a checkpoint needs; nothing is executed");
  expect_refusal(attack, optimizer);
  EXPECT_FALSE(fs::exists(evidence));

  const std::string whole = zero::checkpoint_of(kGroups, {}).at(optimizer);
  expect_refusal(with(whole.substr(0, whole.size() / 2)), optimizer + ": there is no ZIP directory at the end");
  expect_refusal(with(""), optimizer);
  expect_refusal(with(zero::zip_of({{"../../x/data.pkl", "x"}})), "which is not a plain name");
  expect_refusal(with(zero::zip_of({{"a/data.pkl", zero::pickle_of(std::string(100'000, '('))}})), optimizer);
  expect_refusal(run_on({{"config.json", "{}"}}), "is not a checkpoint that can be imported");
  expect_refusal(run_on({}), "");
}

TEST_F(Import, ReportsEveryFailureOfItsReader) {
  const auto misbehave = [&](const std::string& action) {
    return run_on({{"action", action}}, {"--plugin-path", CHASSIS_TEST_STUB_DIR});
  };
  expect_refusal(misbehave("crash"), "its reader was killed by SIGABRT while reading 'action'");
  // Exit code 3 shows that a plugin called exit; a sanitizer keeps the original code.
  expect_refusal(misbehave("exit"),
                 std::string("its reader exited with code ") + (kIsSanitized ? "0" : "3") + " while reading 'action'");
#ifdef __x86_64__
  for (const char* attempt : {"run", "fork", "talk", "write", "remove"})
    expect_refusal(misbehave(attempt), "was killed by SIGSYS: it made a system call that a reader may not make");
#endif
  if (!kIsSanitized) expect_refusal(misbehave("memory"), "its reader needs more than 4 GiB of memory");
  expect_refusal(misbehave("outside"), "'w' extends past the end of 'action'");
  expect_refusal(misbehave("lie"), "its reader sent a message with a wrong type or a missing key");
  expect_refusal(misbehave("nonsense"), "message of the reader");
}

TEST_F(Import, IsTheOnlyWayToReadSuchFiles) {
  write_files(source_, zero::checkpoint_of(kGroups, {}));
  const RealFormat format("zero_import", CHASSIS_TEST_PLUGIN_DIR "/zero_import.so");
  EXPECT_NE(error_of([&] { CheckpointReader(source_, format.get()); }).find("only in a separate process"),
            std::string::npos);
  EXPECT_NE(error_of([&] { plan_save(small_model().save_tensors(), {}, format.get()); }).find("can only read"),
            std::string::npos);
}

// The rules are those of `ckpt export`: see OutputDirectory.
TEST_F(Import, NeverOverwritesItsSourceOrARun) {
  const auto files = zero::checkpoint_of(kGroups, {});
  write_files(source_, files);
  const auto into = [&](const std::string& target, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {CHASSIS_TEST_BINARY_DIR "/bin/chassis", "ckpt", "import-zero", source_, target};
    words.insert(words.end(), more.begin(), more.end());
    const test::Outcome outcome = test::run_process(words, directory_.path());
    EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
    return outcome.output;
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(into(source_), "it is the directory that is read");
  expect(into(directory_ / "step-000002"), "step-000002' has the name of step 2, but this is step 7");
  const std::string checkpoints = directory_ / "run/checkpoints";
  const CheckpointRoot in_use(checkpoints);
  expect(into(checkpoints + "/step-000002"), "it lies among the checkpoints of a run");
  expect(into(checkpoints + "/step-000002", {"--checkpoint"}), "is in use by another run");
  for (const auto& [path, bytes] : files) EXPECT_TRUE(read_file(source_ + "/" + path) == bytes) << path;
}

TEST_F(Import, NeverReplacesForeignFiles) {
  fs::create_directories(out_);
  write_text(out_ + "/precious", "x");
  const test::Outcome outcome = run_on(zero::checkpoint_of(kGroups, {}));
  EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
  EXPECT_TRUE(fs::exists(out_ + "/precious"));
}

}  // namespace
}  // namespace chassis
