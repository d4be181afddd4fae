// The memory of a rehearsed step, compared with that of a real one.
#include "host/execute/rehearsal.hpp"

#include <gtest/gtest.h>

#include "host/service/memory.hpp"
#include "host/service/meta_memory.hpp"
#include "host/service/step_place.hpp"
#include "tests/support/cpu_run.hpp"

namespace chassis {
namespace {

using test::CpuRun;
using test::LoadedPlugins;

constexpr const char* kModel = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 640, "hidden_size": 64,
  "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})";
constexpr const char* kExpertModel = R"({"architectures": ["MixtralForCausalLM"], "vocab_size": 640, "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
  "num_local_experts": 5, "num_experts_per_tok": 3, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
  "sliding_window": null, "tie_word_embeddings": false})";
constexpr int64_t kRehearsedRows = 2, kRehearsedLength = 128;

struct Providers {
  std::vector<std::string> kernels;
  std::string attention;
  const char *model = "llama", *config = kModel;
};

class Rehearsal : public testing::Test {
 protected:
  Rehearsal() {
    install_memory_allocator();
    install_meta_allocator();
  }

  std::unique_ptr<CpuRun> make_run(const Providers& names) {
    std::vector<OpsProvider> kernels;
    for (const std::string& id : names.kernels) kernels.push_back(plugins_.ops(id));
    return std::make_unique<CpuRun>(plugins_.record_model(names.model, names.config), kernels,
                                    std::vector<OpsProvider>{plugins_.ops(names.attention)}, kRehearsedRows,
                                    kRehearsedLength);
  }
  static Fields fields() {
    std::vector<int32_t> ids(kRehearsedRows * kRehearsedLength);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 640);
    return test::fields_of(ids, kRehearsedRows);
  }

  // The memory that was added since `before`.
  static MemoryUsage since(MemoryUsage now, const MemoryUsage& before) {
    now.peak_bytes -= before.live_bytes;
    for (size_t i = 0; i < kNumMemoryCategories; ++i) {
      now.categories[i].peak_bytes -= before.categories[i].live_bytes;
      now.categories[i].bytes_at_total_peak -= before.categories[i].live_bytes;
    }
    return now;
  }
  static MemoryUsage measured(CpuRun& run) {
    const Fields batch = fields();
    reset_peak_memory();
    const MemoryUsage before = memory_usage();
    run.step({batch});
    return since(memory_usage(), before);
  }
  static MemoryUsage rehearsed(CpuRun& run) {
    run.storage.emplace(run.parameters, kMetaHost);
    for (const auto& p : run.parameters.all()) p->gradient.reset();
    Fields batch;
    for (const auto& [name, field] : fields()) batch[name] = field.to(kMetaHost);
    run.rehearse_on(kMetaHost);
    reset_peak_meta_memory();
    const MemoryUsage before = meta_memory_usage(kMetaHost);
    run.parameters.start_step();
    run.executor->forward(0, batch, 1.0);
    run.executor->backward(0);
    return since(meta_memory_usage(kMetaHost), before);
  }
  void expect_close(const Providers& names, Recompute recompute) {
    const auto run = make_run(names);
    run->make(recompute);
    const MemoryUsage real = measured(*run), planned = rehearsed(*run);
    const auto ratio = static_cast<double>(planned.peak_bytes) / static_cast<double>(real.peak_bytes);
    EXPECT_GT(ratio, 0.95) << names.kernels[0] << ", " << names.attention;
    EXPECT_LT(ratio, 1.05) << names.kernels[0] << ", " << names.attention;
    expect_near(planned.of(MemoryCategory::kGradients).peak_bytes, real.of(MemoryCategory::kGradients).peak_bytes,
                "gradients");
    expect_near(planned.of(MemoryCategory::kLogits).peak_bytes, real.of(MemoryCategory::kLogits).peak_bytes, "logits");
    expect_near(activations(planned), activations(real), "activations");
  }
  static uint64_t activations(const MemoryUsage& usage) {
    return usage.of(MemoryCategory::kActivations).bytes_at_total_peak +
           usage.of(MemoryCategory::kWorkspace).bytes_at_total_peak;
  }
  static void expect_near(uint64_t planned, uint64_t real, const char* what) {
    EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(real), 0.1 * static_cast<double>(real)) << what;
  }

  LoadedPlugins plugins_;
};

TEST_F(Rehearsal, TakesAsMuchMemoryAsAStepOnTheCpu) {
  for (const Recompute& recompute : {Recompute::kNone, Recompute::kSelective, Recompute{.selective = 2},
                                     Recompute::kFull, Recompute{1, Recompute::kAll}}) {
    expect_close({{"reference"}, "naive"}, recompute);
    expect_close({{"aten"}, "sdpa"}, recompute);
    expect_close({{"fused", "aten"}, "interval"}, recompute);
    expect_close({{"fused", "aten"}, "sdpa"}, recompute);
  }
}

TEST_F(Rehearsal, TakesAsMuchMemoryAsAStepWithExperts) {
  for (const Recompute& recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    expect_close({{"aten"}, "sdpa", "mixtral", kExpertModel}, recompute);
    expect_close({{"grouped", "aten"}, "interval", "mixtral", kExpertModel}, recompute);
  }
}

TEST_F(Rehearsal, FreesItsMemoryAndCallsNoKernel) {
  const auto run = make_run({{"fused", "aten"}, "sdpa"});
  run->storage.emplace(run->parameters, kMetaHost);
  const MemoryUsage before = memory_usage();
  const uint64_t meta = meta_memory_usage(kMetaHost).live_bytes;
  reset_peak_memory();
  rehearsed(*run);
  EXPECT_LT(memory_usage().peak_bytes - before.live_bytes, 64u << 10) << "only the batch takes real memory";
  for (const auto& p : run->parameters.all()) p->gradient.reset();
  EXPECT_EQ(meta_memory_usage(kMetaHost).live_bytes, meta);
}

TEST_F(Rehearsal, LeavesThePlaceOfTheRunAlone) {
  enter_phase("reduction of gradients");
  rehearsed(*make_run({{"fused", "aten"}, "sdpa"}));
  EXPECT_STREQ(step_place().phase, "reduction of gradients");
}

}  // namespace
}  // namespace chassis
