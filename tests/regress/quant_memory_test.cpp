// No process has a full-precision copy of a model that it quantizes while it loads it: shown under a limit of the
// process's own memory, which the same run without [quant] exceeds.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/regress/small_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

constexpr int64_t kKib = 1024, kMib = 1024 * kKib;

// A Llama of equal layers, whose head and embedding are small.
struct Sizes {
  int64_t hidden, intermediate, layers;
  // The elements of the linears of one layer.
  int64_t layer_elements() const { return 4 * hidden * hidden + 3 * hidden * intermediate; }
};
constexpr Sizes kTiny{64, 128, 8}, kLarge{512, 2048, 8};

class QuantMemory : public testing::TestWithParam<int> {  // ranks
 protected:
  QuantMemory() {
    write_text(folder_ / "tokens.jsonl", token_rows(random_documents({40, 40, 40, 40, 40, 40, 40, 40}, 96)));
    for (const auto& [name, s] : {std::pair("tiny", kTiny), std::pair("large", kLarge)}) {
      write_text(
          folder_ / "base.toml",
          head("made") + "[model]\nplugin = \"llama\"\nconfig = { vocab_size = 96, hidden_size = " +
              std::to_string(s.hidden) + ", intermediate_size = " + std::to_string(s.intermediate) +
              ", num_hidden_layers = " + std::to_string(s.layers) +
              ", num_attention_heads = 8, num_key_value_heads = 8 }\n[optimizer]\nplugin = \"sgd\"\nlr = 1e-3\n");
      const Outcome made = run_process({CHASSIS_PROGRAM, "train", "base.toml"}, folder_.path());
      if (made.exit_code != 0) throw std::runtime_error(made.output);
      std::filesystem::rename(folder_ / "made/final", folder_ / name);
      std::filesystem::remove_all(folder_ / "made");
    }
  }

  // A step of LoRA. Every process may have `limit` bytes of its own: heap, stacks, and private mappings.
  Outcome train(const std::string& model, bool quantizes, int64_t limit) const {
    std::filesystem::remove_all(folder_ / "run");
    write_text(folder_ / "run.toml", head("run") + "[model]\npath = \"" + model + "\"\n" +
                                         (quantizes ? "[quant]\nplugin = \"bnb4\"\ndouble_quant = true\n" : "") +
                                         "[adapter]\nplugin = \"lora\"\nrank = 4\n[optimizer]\nlr = 1e-3\n" +
                                         (GetParam() > 1 ? "[[parallel]]\nplugin = \"fsdp2\"\n" : ""));
    return run_process({"/bin/sh", "-c",
                        "ulimit -d " + std::to_string(limit / kKib) +
                            " && exec " CHASSIS_PROGRAM " train run.toml --nproc " + std::to_string(GetParam())},
                       folder_.path());
  }

  // The least limit, to within 4 MiB, under which the tiny model is trained.
  int64_t baseline() const {
    int64_t fails = 32 * kMib, works = 64 * kMib;
    while (train("tiny", true, works).exit_code != 0) {
      if (works >= 4096 * kMib) throw std::runtime_error("the tiny model is not trained");
      fails = works;
      works *= 2;
    }
    while (works - fails > 4 * kMib) {
      const int64_t middle = (works + fails) / 2;
      (train("tiny", true, middle).exit_code == 0 ? works : fails) = middle;
    }
    return works;
  }

  const ScratchDirectory folder_;

 private:
  static std::string head(const std::string& run) {
    return "schema_version = 1\n[run]\noutput_dir = \"" + run +
           "\"\nmax_steps = 1\nseed = 5\nthreads = 1\ndevice = \"cpu\"\n[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR
           "\"]\n[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[data]\ncache_dir = \"cache\"\n"
           "[train]\nseq_len = 16\nglobal_batch_size = 2\nmicro_batch_size = 1\n[attention]\nplugin = \"sdpa\"\n"
           "[kernels]\nplugins = [\"fused\", \"aten\"]\n[precision]\ncompute = \"fp32\"\n"
           "[checkpoint]\nbucket_mib = 1\n";
  }
};

TEST_P(QuantMemory, HoldsComponentsOneUnitAndBuckets) {
  const int ranks = GetParam();
  const int64_t elements = kLarge.layers * kLarge.layer_elements(), plain = 4 * elements;
  ASSERT_GT(plain, 100 * kMib);
  // Codes, scales in 8 bits, and scales in fp32 during load; the same for two units, gathered on several ranks.
  const auto components = [](int64_t n) { return n / 2 + n / 64 + n / 64 * 4; };
  const int64_t gathered = ranks > 1 ? 2 * components(kLarge.layer_elements()) : 0;
  const int64_t unit = 4 * kLarge.layer_elements(), buckets = 2 * kMib;
  // Weights, gradients and states of the adapter, the activations of 16 tokens, and the allocator's losses.
  const int64_t slack = 16 * kMib;
  const int64_t base = baseline(), limit = base + components(elements) / ranks + gathered + unit + buckets + slack;
  ASSERT_LT(limit - base, plain / ranks) << "a copy would fit";
  const std::string where = std::to_string(base / kMib) + " MiB for a tiny model, " +
                            std::to_string((limit - base) / kMib) + " MiB more allowed, a copy has " +
                            std::to_string(plain / ranks / kMib) + " MiB";
  std::printf("%d ranks: %s\n", ranks, where.c_str());
  const Outcome ours = train("large", true, limit);
  EXPECT_EQ(ours.exit_code, 0) << where << "\n" << ours.output;
  const Outcome control = train("large", false, limit);
  // The limit is hit by an allocation, or by the stack of a thread that the comm backend starts.
  EXPECT_NE(control.exit_code, 0) << where << "\n" << control.output;
  EXPECT_TRUE(control.exit_code == 4 || control.output.find("Resource temporarily unavailable") != std::string::npos)
      << where << "\n"
      << control.output;
}

INSTANTIATE_TEST_SUITE_P(, QuantMemory, testing::Values(1, 2), [](const auto& info) {
  return "On" + std::to_string(info.param) + (info.param > 1 ? "Ranks" : "Rank");
});

}  // namespace
}  // namespace chassis::test
