// One rank of a simulated world: the code of a real run on meta tensors, with a backend that moves nothing. Traffic and
// memory are counted as on a real rank.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/service/meta_memory.hpp"
#include "host/session/fields.hpp"
#include "host/session/session.hpp"
#include "host/session/step.hpp"

namespace chassis::test {

// A Llama with dims divisible by 2 and 4, so that formulas hold without padding; `more` is TOML to append.
inline std::string divisible_llama(const std::string& more) {
  return std::string(R"(schema_version = 1
[run]
output_dir = "run"
max_steps = 3
threads = 1
device = "cpu"
[plugins]
path = [")" CHASSIS_TEST_PLUGIN_DIR R"("]
[model]
plugin = "llama"
config = { vocab_size = 96, hidden_size = 48, intermediate_size = 96, num_hidden_layers = 3, num_attention_heads = 6, num_key_value_heads = 2, attention_bias = true, tie_word_embeddings = false }
[[data.train]]
path = "tokens.jsonl"
format = "tokens"
[data]
cache_dir = "cache"
[train]
seq_len = 16
micro_batch_size = 1
[optimizer]
plugin = "adamw"
lr = 1e-3
[attention]
plugin = "sdpa"
[kernels]
plugins = ["fused", "aten"]
[precision]
compute = "fp32"
[recompute]
mode = "none"
[export]
when = "never"
)") + more;
}

struct Count {
  uint64_t calls = 0, bytes = 0;
  bool operator==(const Count&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Count& c) {
    return out << c.calls << " calls, " << c.bytes << " bytes";
  }
};
// By op and axes: "all_gather dp_shard".
using Sent = std::map<std::string, Count>;

class PlannedRank {
 public:
  PlannedRank(const std::string& toml, int world_size, int rank = 0, const std::vector<std::string>& overrides = {})
      : session_((install_meta_allocator(), load_config_text(toml, "run.toml", overrides)), options(world_size, rank)) {
    const RecomputeMode mode = session_.settings().recompute.mode;
    const Recompute recompute = mode == RecomputeMode::kFull        ? Recompute::kFull
                                : mode == RecomputeMode::kSelective ? Recompute::kSelective
                                                                    : Recompute::kNone;
    session_.allocate({.recompute = recompute, .rehearsal = kMetaHost});
    session_.refresh_parameters();
    take_sent();
  }

  Session& session() { return session_; }
  const ParameterTable& parameters() { return session_.parameters(); }

  Sent step() {
    StepParts parts = session_.step_parts();
    parts.device = kMetaHost;
    StepInputs inputs;
    const BatchSizes sizes = batch_sizes(session_.settings(), session_.ranks().num_data_ranks());
    inputs.schedule = sequential_schedule(sizes.num_microbatches);
    inputs.fields = [this](int) { return fields(); };
    run_step(parts, inputs);
    return take_sent();
  }
  // Evaluates one batch.
  Sent evaluation() {
    session_.executor().loss(fields());
    session_.ranks().events().finish_step();
    return take_sent();
  }

 private:
  static SessionOptions options(int world_size, int rank) {
    SessionOptions options;
    options.target.without_device = true;
    options.world_size = world_size;
    options.rank = rank;
    return options;
  }
  Fields fields() {
    const Settings::Train& train = session_.settings().train;
    return empty_fields(session_.program(), train.micro_batch_size, train.seq_len, kMetaHost);
  }
  Sent take_sent() {
    Sent sent;
    for (const CommCount& count : session_.ranks().communicator.take_counts())
      sent[count.op + " " + count.group] = {count.calls, count.bytes};
    return sent;
  }

  Session session_;
};

}  // namespace chassis::test
