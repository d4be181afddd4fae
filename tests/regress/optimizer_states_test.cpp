// States of 8 bits, signs and whole matrices have the same bits in every layout, and after every change of it, if
// gradients do: tests/regress/fed_optimizer.cpp makes gradients that depend on no layout.
#include <iterator>

#include "tests/regress/started_run.hpp"
#include "tests/regress/whole_tensors.hpp"

namespace chassis::test {
namespace {

using Bytes = std::map<std::string, std::vector<char>>;

constexpr const char* kLayouts[][2] = {{"fsdp2", "[[parallel]]\nplugin = \"fsdp2\"\n"},
                                       {"zero1", "[[parallel]]\nplugin = \"zero\"\nstage = 1\n"},
                                       {"zero2", "[[parallel]]\nplugin = \"zero\"\nstage = 2\n"},
                                       {"zero3",
                                        "[[parallel]]\nplugin = \"zero\"\nstage = 3\n"
                                        "stage3_param_persistence_threshold = 40\n"}};

struct Inner {
  const char* name;
  const char* options = "";
  friend void PrintTo(const Inner& inner, std::ostream* out) { *out << inner.name; }
};

class OptimizerStates : public testing::TestWithParam<Inner>, protected StartedRun {
 protected:
  OptimizerStates()
      : StartedRun({"run.threads=1", "train.micro_batch_size=1", "train.global_batch_size=12", "--plugin-path",
                    CHASSIS_TEST_STUB_DIR}) {}

  // Gradients are not clipped: their norm is that of the true gradients, which are rounded differently in each layout.
  std::vector<std::string> words(int steps, const std::string& from = "",
                                 const std::string& options = GetParam().options) const {
    std::vector<std::string> words = {std::string("optimizer={plugin=\"fed\", inner=\"") + GetParam().name +
                                          "\", inner_options='" + options +
                                          "', lr=2e-3, weight_decay=0.1, max_grad_norm=0}",
                                      "run.max_steps=" + std::to_string(steps)};
    if (!from.empty()) words.push_back("run.resume=" + from);
    return words;
  }
  Bytes bytes(const std::string& path) {
    Bytes out;
    for (const auto& [name, tensor] : whole_tensors(path, plugins_)) {
      const char* data = tensor.data_as<char>();
      out[name].assign(data, data + tensor.num_bytes());
    }
    return out;
  }
  static void expect_equal(const Bytes& got, const Bytes& expected, const std::string& what) {
    EXPECT_EQ(got.size(), expected.size()) << what;
    int64_t different = 0;
    std::string first;
    for (const auto& [name, value] : expected) {
      const auto found = got.find(name);
      if (found != got.end() && found->second == value) continue;
      if (different++ == 0) first = name;
    }
    EXPECT_EQ(different, 0) << what << ": " << first;
  }

  LoadedPlugins plugins_;
};

TEST_P(OptimizerStates, HaveTheSameBitsInEveryLayout) {
  train("alone", words(3));
  const Bytes alone = bytes(checkpoint("alone", 3));
  EXPECT_GT(alone.size(), 20u);
  const bool is_8bit = std::string_view(GetParam().name) == "adamw8bit";
  int64_t in_blocks = 0;
  for (const auto& [name, value] : alone) in_blocks += name.ends_with(".exp_avg_absmax");
  EXPECT_EQ(in_blocks, is_8bit ? 2 + 7 * 3 : 0) << "embedding, head, and seven weights of each layer";
  for (const auto& [name, toml] : kLayouts)
    for (const int ranks : {2, 3, 4}) {
      if (!is_8bit && ranks != 3) continue;
      const std::string directory = name + std::to_string(ranks);
      train(directory, words(3), {name, ranks, toml});
      ASSERT_FALSE(HasFailure()) << directory;
      expect_equal(bytes(checkpoint(directory, 3)), alone, directory);
    }
}

TEST_P(OptimizerStates, KeepTheirBitsWhenTheLayoutChanges) {
  const Sharding chain[] = {{"fsdp2", 4, kLayouts[0][1]}, {"zero1", 3, kLayouts[1][1]},
                            {"zero3", 2, kLayouts[3][1]}, {"alone1", 1, ""},
                            {"zero2", 4, kLayouts[2][1]}, {"fsdp2b", 3, kLayouts[0][1]}};
  const int last = static_cast<int>(std::size(chain));
  train("alone", words(last));
  std::string from;
  for (int step = 1; step <= last; ++step) {
    train(chain[step - 1].name, words(step, from), chain[step - 1]);
    ASSERT_FALSE(HasFailure()) << chain[step - 1].name;
    from = checkpoint(chain[step - 1].name, step);
  }
  expect_equal(bytes(from), bytes(checkpoint("alone", last)), "after " + std::to_string(last) + " layouts");
}

// Rows of gate and up, and columns of down, are cut between blocks of 256.
TEST_P(OptimizerStates, HaveTheSameBitsWhereTensorParallelismCutsBlocks) {
  if (std::string_view(GetParam().name) == "muon") GTEST_SKIP() << "needs whole matrices";
  const char* const tensor = "[[parallel]]\nplugin = \"tensor\"\n";
  const char* const hybrid = "[mesh]\ntp = 2\n[[parallel]]\nplugin = \"tensor\"\n[[parallel]]\nplugin = \"fsdp2\"\n";
  const Sharding chain[] = {{"tensor", 2, tensor},        {"alone1", 1, ""},
                            {"tensorb", 2, tensor},       {"hybrid", 4, hybrid},
                            {"fsdp2", 3, kLayouts[0][1]}, {"hybridb", 4, hybrid}};
  const int last = static_cast<int>(std::size(chain));
  const bool is_8bit = std::string_view(GetParam().name) == "adamw8bit";
  const auto even = [&](int steps, const std::string& from = "") {
    std::vector<std::string> all = words(steps, from, is_8bit ? R"({"min_8bit_size": 10000})" : "");
    all.insert(all.end(), {"model.config.hidden_size=64", "model.config.intermediate_size=512",
                           "model.config.num_attention_heads=4", "model.config.num_key_value_heads=2"});
    return all;
  };
  train("alone", even(last));
  std::string from;
  for (int step = 1; step <= last; ++step) {
    const Sharding& sharding = chain[step - 1];
    train(sharding.name, even(step, from), sharding);
    ASSERT_FALSE(HasFailure()) << sharding.name;
    from = checkpoint(sharding.name, step);
  }
  expect_equal(bytes(from), bytes(checkpoint("alone", last)), "after " + std::to_string(last) + " layouts");
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerStates,
                         testing::Values(Inner{"adamw8bit", R"({"min_8bit_size": 512})"}, Inner{"lion"}, Inner{"muon"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace chassis::test
