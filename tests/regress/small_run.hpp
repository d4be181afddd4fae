// A Llama small enough to be trained in a test: its configuration in a scratch folder, and training steps in the
// process of the test.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "host/session/session.hpp"
#include "host/train/trainer.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {

struct Providers {
  std::string attention, kernels;  // kernels as in TOML
  friend void PrintTo(const Providers& p, std::ostream* out) { *out << p.attention << " " << p.kernels; }
};

// The sets of providers with which tests of whole runs are repeated.
class WithProviders : public testing::TestWithParam<Providers> {
 public:
  static auto all() {
    return testing::Values(Providers{"sdpa", "[\"aten\"]"}, Providers{"interval", "[\"fused\", \"aten\"]"},
                           Providers{"naive", "[\"reference\"]"});
  }
};

struct Document {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;  // empty: all are trained
};

// Random ids; every third document has a random part of its labels masked.
inline std::vector<Document> random_documents(const std::vector<size_t>& lengths, int32_t vocab_size = 101) {
  std::mt19937 random(7);
  std::vector<Document> documents;
  for (size_t length : lengths) {
    Document document;
    for (size_t i = 0; i < length; ++i)
      document.ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size)));
    if (documents.size() % 3 == 1)
      for (int32_t id : document.ids) document.labels.push_back(random() % 2 ? -100 : id);
    documents.push_back(std::move(document));
  }
  return documents;
}

// As rows of a file of format "tokens".
inline std::string token_rows(const std::vector<Document>& documents) {
  const auto list = [](const std::vector<int32_t>& values) {
    std::string text;
    for (int32_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
    return "[" + text + "]";
  };
  std::string text;
  for (const Document& document : documents) {
    text += "{\"input_ids\":" + list(document.ids);
    if (!document.labels.empty()) text += ",\"labels\":" + list(document.labels);
    text += "}\n";
  }
  return text;
}

class SmallRun {
 public:
  // `model` is the text of [model].
  explicit SmallRun(const Providers& providers, const std::string& model = kLlama) {
    config_ = R"(schema_version = 1
[run]
output_dir = ")" +
              (folder_ / "run") + R"("
max_steps = 10
seed = 5
threads = 2
device = "cpu"
[model]
)" + model + R"(
[[data.train]]
path = ")" + (folder_ / "tokens.jsonl") +
              R"("
format = "tokens"
[data]
cache_dir = ")" +
              (folder_ / "cache") + R"("
[train]
seq_len = 32
[optimizer]
plugin = "adamw"
lr = 2e-3
weight_decay = 0.1
eps = 1e-4
[precision]
compute = "fp32"
[checkpoint]
bucket_mib = 1
[attention]
plugin = ")" + providers.attention +
              R"("
[kernels]
plugins = )" + providers.kernels +
              "\n";
    write_text(folder_ / "run.toml", config_);
  }

  const ScratchDirectory& folder() const { return folder_; }
  std::string config_path() const { return folder_ / "run.toml"; }

  void write(const std::vector<Document>& documents) const {
    write_text(folder_ / "tokens.jsonl", token_rows(documents));
  }

  std::unique_ptr<Session> open(const std::vector<std::string>& overrides, ProgramPasses passes = {},
                                Collectives* collectives = nullptr, const Execution& execution = {}) const {
    auto session = std::make_unique<Session>(
        load_config(config_path(), overrides),
        SessionOptions{
            .plugin_path = {CHASSIS_TEST_PLUGIN_DIR}, .passes = std::move(passes), .collectives = collectives});
    session->allocate(execution);
    session->parameters().initialize(static_cast<uint64_t>(*session->settings().run.seed));
    session->refresh_parameters();
    return session;
  }

 protected:
  static constexpr const char* kLlama =
      "plugin = \"llama\"\nconfig = { vocab_size = 101, hidden_size = 32, intermediate_size = 56, num_hidden_layers = "
      "3, "
      "num_attention_heads = 4, num_key_value_heads = 2, attention_bias = true, initializer_range = 0.1 }";

 private:
  ScratchDirectory folder_;
  std::string config_;
};

using Values = std::map<std::string, std::vector<float>>;

// Results of some training steps.
struct Trained {
  std::vector<double> losses, grad_norms;
  Values gradients;  // from the last step
  Values weights;
};

inline std::vector<float> floats_of(const Tensor& tensor) {
  const Tensor values = tensor.to(Dtype::f32).contiguous();
  const auto* begin = static_cast<const float*>(values.data());
  return {begin, begin + values.num_elements()};
}

inline Trained train(Session& session, int64_t num_steps) {
  const auto data = open_train_data(session.data_needs());
  const Settings& settings = session.settings();
  const BatchSizes sizes = batch_sizes(settings, 1);
  TrainerOptions options;
  options.shape = {sizes.micro_batch_size, sizes.num_microbatches, 0, 1};
  options.schedule = {Curve::kConstant, settings.optimizer.lr, 0, 0, 0.0, num_steps};
  options.max_grad_norm = settings.optimizer.max_grad_norm;
  options.max_steps = num_steps;
  Trainer trainer(session.state(), *data, options);
  Trained trained;
  for (int64_t step = 0; step < num_steps; ++step) {
    const StepRecord record = trainer.step();
    trained.losses.push_back(record.loss);
    trained.grad_norms.push_back(record.grad_norm);
  }
  EXPECT_TRUE(session.ranks().communicator.take_counts().empty()) << "one rank sends nothing";
  for (const auto& p : session.parameters().all()) {
    if (p->trainable) trained.gradients[p->name] = floats_of(p->gradient);
    trained.weights[p->name] = floats_of(p->stored());
  }
  return trained;
}

inline Trained train(const SmallRun& run, int64_t num_steps, std::vector<std::string> overrides,
                     Recompute recompute = Recompute::kNone) {
  const auto session = run.open(overrides, {}, nullptr, {.recompute = recompute});
  return train(*session, num_steps);
}

inline double relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

// Relative difference of all tensors together, as one vector.
inline double relative_l2(const Values& ours, const Values& theirs) {
  double difference = 0.0, norm = 0.0;
  for (const auto& [name, values] : theirs) {
    const std::vector<float>& other = ours.at(name);
    for (size_t i = 0; i < values.size(); ++i) {
      const double d = static_cast<double>(other[i]) - values[i];
      difference += d * d;
      norm += static_cast<double>(values[i]) * values[i];
    }
  }
  return std::sqrt(difference / norm);
}

inline void expect_close(const Trained& ours, const Trained& theirs, double tolerance) {
  ASSERT_EQ(ours.losses.size(), theirs.losses.size());
  double loss = 0.0, norm = 0.0;
  for (size_t i = 0; i < ours.losses.size(); ++i) {
    loss = std::max(loss, relative(ours.losses[i], theirs.losses[i]));
    norm = std::max(norm, relative(ours.grad_norms[i], theirs.grad_norms[i]));
  }
  EXPECT_LE(loss, tolerance);
  EXPECT_LE(norm, tolerance);
  EXPECT_LE(relative_l2(ours.gradients, theirs.gradients), tolerance);
  EXPECT_LE(relative_l2(ours.weights, theirs.weights), tolerance);
  std::printf("relative differences: loss %.1e, gradient norm %.1e, gradients %.1e, weights %.1e\n", loss, norm,
              relative_l2(ours.gradients, theirs.gradients), relative_l2(ours.weights, theirs.weights));
}

// bf16 has 8 significant bits: the relative error of a value is at most 2^-9, and that of a sum of products of such
// values little more.
// `slack`: a factor for models whose values jump where two experts are nearly equal.
inline void expect_within_bf16(const Trained& rounded, const Trained& exact, double slack = 1) {
  EXPECT_NE(rounded.losses, exact.losses);
  for (size_t i = 0; i < exact.losses.size(); ++i) {
    EXPECT_LE(relative(rounded.losses[i], exact.losses[i]), slack * 0x1p-8);
    EXPECT_LE(relative(rounded.grad_norms[i], exact.grad_norms[i]), slack * 0x1p-5);
  }
  EXPECT_LE(relative_l2(rounded.gradients, exact.gradients), slack * 0x1p-4);
  EXPECT_LE(relative_l2(rounded.weights, exact.weights), slack * 0x1p-8);
}

inline void expect_same_bits(const Trained& ours, const Trained& theirs) {
  EXPECT_EQ(ours.losses, theirs.losses);
  EXPECT_EQ(ours.grad_norms, theirs.grad_norms);
  for (const auto& [name, values] : theirs.gradients) EXPECT_EQ(ours.gradients.at(name), values) << name;
  for (const auto& [name, values] : theirs.weights) EXPECT_EQ(ours.weights.at(name), values) << name;
}

}  // namespace chassis::test
