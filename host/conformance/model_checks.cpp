// Records, maps and configures a model twice and compares; compares gradients with finite differences.
#include "host/conformance/model_checks.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/compile/model_plugin.hpp"
#include "host/conformance/own_ops.hpp"
#include "host/conformance/sample_program.hpp"
#include "host/execute/executor.hpp"
#include "host/service/rng.hpp"
#include "host/session/run_model.hpp"

namespace chassis {
namespace {

class ModelExamination {
 public:
  ModelExamination(const std::function<std::unique_ptr<Instance>()>& make, const std::string& config,
                   std::span<const OpsProvider> oracles, const std::function<std::vector<OpsProvider>()>& own_kernels)
      : make_(make), config_(config), providers_(oracles.begin(), oracles.end()), own_kernels_(own_kernels) {}

  std::vector<std::string> run() {
    const auto instance = make_();
    const ModelPlugin model(*instance);
    model.configure(config_);
    recorded_ = record(model);
    if (const std::string text = difference(record(model), recorded_); !text.empty())
      fail("a second recording has {}", text);
    if (const std::string fault = program_fault(recorded_); !fault.empty()) {
      fail("{}", fault);
      return failures_;
    }
    ResolveOptions resolve;
    resolve.batch = kSampleBatch;
    resolve.time = kSampleTime;
    if (own_kernels_ && has_own_ops(recorded_))
      for (const OpsProvider& provider : own_kernels_()) providers_.push_back(provider);
    resolve.kernels = providers_;
    compiled_ = compile(recorded_, {.objective = objective(), .resolve = std::move(resolve)});
    examine_parameters();
    if (const int64_t most = model.max_positions(); most < 0)
      fail("max_positions() returns {}, expected a number of positions, or 0 for none", most);
    if (!failures_.empty()) return failures_;
    examine_mapping(model);
    examine_config(model);
    examine_unknown_key();
    examine_refusals();
    if (failures_.empty()) examine_gradients();
    if (failures_.empty()) failures_ = own_op_failures(compiled_->program(), providers_);
    if (failures_.empty()) examine_logits();
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  static Program record(const ModelPlugin& model) {
    return compile({[&model](const chassis_builder_t* builder) { return model.record(builder); }},
                   {.objective = std::nullopt})
        .program();
  }
  // The loss of tokens, or the scores of a model that has no logits.
  ObjectiveRequest objective() const {
    const BlockType& last = *recorded_.last_block();
    if (last.outputs.contains(kLogitsOutput)) return {};
    const GraphValue& scores = last.values[last.outputs.at(kScoresOutput)];
    return {ObjectiveOutput::kScores, recorded_.dims[scores.dims.back()].size};
  }
  bool has_scores() const { return objective().output == ObjectiveOutput::kScores; }

  void examine_parameters() {
    if (compiled_->parameters().all().empty()) fail("it records no parameter");
    std::set<std::string> names;
    for (const auto& p : compiled_->parameters().all()) {
      if (p->name.empty()) fail("a parameter has no name");
      if (!names.insert(p->name).second) fail("two parameters have the name '{}'", printable(p->name));
      for (const int64_t size : p->local_shape)
        if (size < 1)
          fail("parameter '{}' has the shape {}, expected sizes of at least 1", printable(p->name), p->local_shape);
    }
  }

  // Two calls of disk_mapping() must agree. The host itself throws if the mapping is not exact.
  void examine_mapping(const ModelPlugin& model) {
    try {
      const ParameterTable& parameters = compiled_->parameters();
      const DiskLayout mapping = model.disk_mapping(parameters), again = model.disk_mapping(parameters);
      for (const auto& p : parameters.all()) {
        if (mapping.forms(p->name) != again.forms(p->name))
          fail("parameter '{}' has a different place on disk in a second mapping", printable(p->name));
        for (const DiskForm& form : mapping.forms(p->name))
          for (const StoredPart& part : form)
            if (const std::string back = mapping.name_of(part.disk_name); back != part.disk_name)
              fail("parameter '{}' is saved as '{}', but that name in a file is read as '{}'", printable(p->name),
                   printable(part.disk_name), printable(back));
      }
    } catch (const Error& error) {
      fail("its disk mapping is not valid: {}", error.message());
    }
  }

  void examine_config(const ModelPlugin& model) {
    const std::string text = model.config();
    const Json config = Json::parse(text, nullptr, false);
    if (!config.is_object()) return fail("its config is not a JSON object: '{}'", printable(text));
    const auto instance = make_();
    const ModelPlugin other(*instance);
    try {
      other.configure(text);
    } catch (const Error& error) {
      return fail("another instance refuses its config: {}", error.message());
    }
    if (const std::string differs = difference(record(other), recorded_); !differs.empty())
      fail("another instance records a different program from its config: {}", differs);
    const Json again = Json::parse(other.config(), nullptr, false);
    if (again == config || !again.is_object()) return;
    for (const auto& [key, value] : config.items())
      if (!again.contains(key) || again.at(key) != value)
        return fail("another instance returns a different config: '{}' is {}, expected {}", printable(key),
                    again.contains(key) ? again.at(key).dump() : "absent", value.dump());
    fail("another instance returns a different config: {} keys, expected {}", again.size(), config.size());
  }

  // Exports must keep what other programs read, such as eos_token_id.
  void examine_unknown_key() {
    constexpr const char* kKey = "conformance_unknown";
    Json extended = parse_json(config_, "the config");
    extended[kKey] = "kept";
    const auto instance = make_();
    const ModelPlugin other(*instance);
    if (!other.configure_refusal(extended.dump()).empty()) return;
    const Json written = Json::parse(other.config(), nullptr, false);
    if (!written.is_object() || written.value(kKey, "") != "kept")
      fail("config() drops the key '{}' of the config that it read; keys that the model does not know are kept", kKey);
  }

  void examine_refusals() {
    for (const char* text : {"", "{", "[]", "{\"hidden_size\": -1}", "\xff"}) {
      const auto instance = make_();
      if (ModelPlugin(*instance).configure_refusal(text).empty())
        fail("it accepts the invalid config '{}'", printable(text));
    }
  }

  void examine_gradients() {
    if (const std::string unknown = unknown_field(compiled_->program()); !unknown.empty())
      return fail("its gradients cannot be compared: {}", unknown);
    storage_.emplace(compiled_->parameters(), Device{});
    fill_sample_values(compiled_->parameters());
    Executor executor(*compiled_);
    try {
      executor.resolved(Purpose::kTraining);
      executor.resolved(Purpose::kLoss);
    } catch (const Error& error) {
      return fail("its gradients cannot be compared: {}{}", error.message(),
                  has_own_ops(compiled_->program())
                      ? "; --plugin-path names the folder of a plugin that computes ops of "
                        "its own"
                      : "");
    }
    const Fields batch = sample_fields(compiled_->program());
    compiled_->parameters().start_step();
    StreamValues outputs = executor.forward(0, executor.all_units(), batch, {}, 1.0), gradients;
    const double loss = loss_of(outputs);
    if (has_scores()) gradients[kScoresOutput] = factors_of(outputs.at(kScoresOutput));
    executor.backward(0, executor.all_units(), std::move(gradients));
    if (!std::isfinite(loss)) return fail("its loss is {}", loss);
    for (const auto& p : compiled_->parameters().all()) examine_gradient(*p, executor, batch, loss);
  }

  // The gradients of a model with scores are compared for a sum of scores, each with its own factor.
  static Tensor factors_of(const Tensor& scores) {
    std::vector<float> values(static_cast<size_t>(scores.num_elements()));
    random_normal(8, "factors of scores", 0, values);
    Tensor out = Tensor::empty(scores.sizes(), Dtype::f32);
    out.copy_from(Tensor::borrow(values.data(), scores.sizes(), Dtype::f32));
    return out;
  }
  double loss_of(const StreamValues& outputs) const {
    if (!has_scores()) return outputs.at(kLossOutput).item();
    const auto scores = float_values(outputs.at(kScoresOutput)),
               factors = float_values(factors_of(outputs.at(kScoresOutput)));
    return std::inner_product(scores.begin(), scores.end(), factors.begin(), 0.0);
  }

  // Checks that logits, or scores, do not depend on later positions or on other documents.
  void examine_logits() {
    const Fields batch = sample_fields(compiled_->program());
    if (!batch.contains("input_ids")) return;
    Executor executor(*compiled_);
    const char* const results = has_scores() ? "scores" : "logits";
    const auto logits_of = [&](const Fields& fields) {
      return float_values(has_scores() ? executor.outputs(Purpose::kLoss, fields).at(kScoresOutput)
                                       : executor.logits(fields, {}, false));
    };
    const auto with = [&](auto&& change) {  // change(name, t, value)
      Fields out;
      for (const auto& [name, field] : batch) {
        out[name] = field.clone();
        if (field.dtype() != Dtype::i32 || field.num_elements() != kSampleBatch * kSampleTime) continue;
        for (int64_t i = 0; i < kSampleBatch * kSampleTime; ++i)
          change(name, i % kSampleTime, out[name].template data_as<int32_t>()[i]);
      }
      return out;
    };
    // The first place in [begin, end) of the first row whose logits differ from those `shift` places earlier.
    const auto differs = [&](const std::vector<float>& a, const std::vector<float>& b, int64_t begin, int64_t end,
                             int64_t shift = 0) -> int64_t {
      const auto width = static_cast<int64_t>(a.size()) / (kSampleBatch * kSampleTime);
      float largest = 0;
      for (const float value : a) largest = std::max(largest, std::abs(value));
      for (int64_t t = begin; t < end; ++t)
        for (int64_t v = 0; v < width; ++v) {
          const float x = a[static_cast<size_t>(t * width + v)], y = b[static_cast<size_t>((t - shift) * width + v)];
          if (!(std::abs(x - y) <= 1e-4f * largest)) return t;
        }
      return -1;
    };
    const auto other_id = [](int32_t id) { return id == 0 ? 1 : id - 1; };

    const std::vector<float> whole = logits_of(batch);
    const auto last_changed = with([&](const std::string& name, int64_t t, int32_t& value) {
      if (name == "input_ids" && t == kSampleTime - 1) value = other_id(value);
    });
    if (const int64_t t = differs(logits_of(last_changed), whole, 0, kSampleTime - 1); t >= 0)
      return fail("the {} of position {} change with the id of position {}, which comes later: it is not causal",
                  results, t, kSampleTime - 1);

    constexpr int64_t kSecond = 3;  // begin of the second document of a packed row
    const auto packed_with = [&](bool changes_first) {
      return with([&](const std::string& name, int64_t t, int32_t& value) {
        if (name == "document_ids") value = t >= kSecond ? 1 : 0;
        if (name == "positions") value = static_cast<int32_t>(t >= kSecond ? t - kSecond : t);
        if (name == "input_ids" && changes_first && t < kSecond) value = other_id(value);
      });
    };
    const std::vector<float> packed = logits_of(packed_with(false));
    if (const int64_t t = differs(packed, logits_of(packed_with(true)), kSecond, kSampleTime); t >= 0)
      return fail(
          "the {} of position {} change with the ids of another document of the row: attention must not cross "
          "documents, which the field \"document_ids\" numbers",
          results, t);
    const int32_t* const ids = batch.at("input_ids").data_as<int32_t>();
    const auto alone = with([&](const std::string& name, int64_t t, int32_t& value) {
      if (name == "input_ids" && t + kSecond < kSampleTime) value = ids[t + kSecond];  // ids of the first row
    });
    if (const int64_t t = differs(packed, logits_of(alone), kSecond, kSampleTime, kSecond); t >= 0)
      fail("the {} of position {} of a document differ from those of the same document alone in a row", results,
           t - kSecond);
  }

  // The direction is the gradient, to reveal a wrong size, plus a random direction, to reveal missing elements.
  void examine_gradient(Parameter& p, Executor& executor, const Fields& batch, double loss) {
    const auto count = static_cast<size_t>(p.stored().num_elements());
    std::vector<float> gradient(count), random(count), start(count);
    const auto read = [](const Tensor& tensor, std::vector<float>& out) {
      Tensor::borrow(out.data(), tensor.sizes(), Dtype::f32).copy_from(tensor);
    };
    if (p.gradient_written) read(p.gradient, gradient);
    read(p.stored(), start);
    random_normal(6, p.name, 0, random);
    const auto norm = [](const std::vector<float>& v) {
      double sum = 0;
      for (const float x : v) sum += static_cast<double>(x) * x;
      return std::sqrt(sum);
    };
    const double size = norm(gradient), random_size = norm(random);
    double expected = 0;
    std::vector<double> direction(count);
    for (size_t i = 0; i < count; ++i) {
      direction[i] = random[i] / random_size + (size > 0 ? gradient[i] / size : 0);
      expected += direction[i] * gradient[i];
    }
    const auto loss_at = [&](double factor) {
      std::vector<float> moved(count);
      for (size_t i = 0; i < count; ++i) moved[i] = static_cast<float>(start[i] + factor * direction[i]);
      p.stored().copy_from(Tensor::borrow(moved.data(), p.stored().sizes(), Dtype::f32));
      compiled_->parameters().update_values();
      return loss_of(executor.outputs(Purpose::kLoss, batch));
    };
    double got = 0;
    bool agrees = false;
    // The loss jumps where another expert is chosen; of several steps, one is short enough to cross no such place.
    for (const double step : {1e-2, 1e-3, 3e-4}) {
      got = (loss_at(step) - loss_at(-step)) / (2 * step);
      const double bound = 2e-2 * (std::abs(expected) + size) + 3e-7 * std::abs(loss) / step;
      agrees = std::abs(got - expected) <= bound;
      if (agrees) break;
    }
    loss_at(0);
    if (!agrees)
      fail("the gradient of '{}' predicts that the loss changes by {:.5g} along a direction, but it changes by {:.5g}",
           p.name, expected, got);
  }

  const std::function<std::unique_ptr<Instance>()>& make_;
  const std::string& config_;
  std::vector<OpsProvider> providers_;
  const std::function<std::vector<OpsProvider>()>& own_kernels_;
  Program recorded_;
  std::optional<CompiledProgram> compiled_;
  std::optional<ParameterStorage> storage_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> sample_model_configs(const std::vector<std::string>& architectures) {
  Json config{{"vocab_size", 61},         {"hidden_size", 64},
              {"intermediate_size", 36},  {"num_hidden_layers", 2},
              {"num_attention_heads", 4}, {"num_key_value_heads", 2},
              {"head_dim", 16},           {"max_position_embeddings", 64},
              {"hidden_act", "silu"},     {"initializer_range", 0.02},
              {"rms_norm_eps", 1e-5},     {"tie_word_embeddings", false}};
  if (!architectures.empty()) config["architectures"] = Json::array({architectures.front()});
  // Without these, a family of experts would take the sizes of its published models.
  Json with_experts = config;
  with_experts.update(Json{{"num_experts", 4},
                           {"num_local_experts", 4},
                           {"n_routed_experts", 4},
                           {"num_experts_per_tok", 2},
                           {"moe_intermediate_size", 20},
                           {"shared_expert_intermediate_size", 24},
                           {"n_shared_experts", 1},
                           {"intermediate_size_mlp", 36},
                           {"first_k_dense_replace", 1},
                           {"kv_lora_rank", 16},
                           {"q_lora_rank", 20},
                           {"qk_nope_head_dim", 8},
                           {"qk_rope_head_dim", 4},
                           {"v_head_dim", 12}});
  Json with_latents = with_experts;  // every head has its own keys
  with_latents["num_key_value_heads"] = config["num_attention_heads"];
  return {config.dump(), with_experts.dump(), with_latents.dump()};
}

std::string configure_refusal(Instance& model, const std::string& config_json) {
  return ModelPlugin(model).configure_refusal(config_json);
}

std::vector<std::string> model_failures(const std::function<std::unique_ptr<Instance>()>& model,
                                        const std::string& config_json, std::span<const OpsProvider> oracles,
                                        const std::function<std::vector<OpsProvider>()>& own_kernels) {
  return ModelExamination(model, config_json, oracles, own_kernels).run();
}

}  // namespace chassis
