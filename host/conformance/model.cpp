// Records, maps and configures a model twice and compares; compares gradients with finite differences.
#include "host/conformance/model.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/conformance/sample_program.hpp"
#include "host/program/executor.hpp"
#include "host/program/model_plugin.hpp"
#include "host/service/rng.hpp"

namespace chassis {
namespace {

class ModelExamination {
 public:
  ModelExamination(const std::function<std::unique_ptr<Instance>()>& make, const std::string& config,
                   std::span<const OpsProvider> oracles)
      : make_(make), config_(config), oracles_(oracles) {}

  std::vector<std::string> run() {
    const auto instance = make_();
    const ModelPlugin model(*instance);
    model.configure(config_);
    ResolveOptions resolve;
    resolve.batch = kSampleBatch;
    resolve.time = kSampleTime;
    resolve.kernels.assign(oracles_.begin(), oracles_.end());
    compiled_ = compile(recording_of(model), {.resolve = std::move(resolve)});
    if (const std::string text = difference(record(model), compiled_->program); !text.empty())
      fail("a second recording has {}", text);
    examine_parameters();
    if (!failures_.empty()) return failures_;
    examine_mapping(model);
    examine_config(model);
    examine_refusals();
    if (failures_.empty()) examine_gradients();
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  static Recording recording_of(const ModelPlugin& model) {
    return {[&model](const chassis_builder_2_t* builder) { return model.record(builder); }};
  }
  static Program record(const ModelPlugin& model) { return compile(recording_of(model), {}).program; }

  void examine_parameters() {
    if (compiled_->parameters->all().empty()) fail("it records no parameter");
    std::set<std::string> names;
    for (const auto& p : compiled_->parameters->all()) {
      if (p->name.empty()) fail("a parameter has no name");
      if (!names.insert(p->name).second) fail("two parameters have the name '{}'", printable(p->name));
      for (const int64_t size : p->local_shape)
        if (size < 1)
          fail("parameter '{}' has the shape {}, expected sizes of at least 1", printable(p->name), p->local_shape);
    }
  }

  // Two declarations must agree. The host itself throws if the mapping is not exact.
  void examine_mapping(const ModelPlugin& model) {
    try {
      const ParameterTable& parameters = *compiled_->parameters;
      const DiskMapping mapping = model.disk_mapping(parameters), again = model.disk_mapping(parameters);
      for (const auto& p : parameters.all()) {
        if (mapping.parts(p->name) != again.parts(p->name))
          fail("parameter '{}' has a different place on disk in a second mapping", printable(p->name));
        for (const DiskPart& part : mapping.parts(p->name))
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
    if (const std::string differs = difference(record(other), compiled_->program); !differs.empty())
      fail("another instance records a different program from its config: {}", differs);
    const Json again = Json::parse(other.config(), nullptr, false);
    if (again == config || !again.is_object()) return;
    for (const auto& [key, value] : config.items())
      if (!again.contains(key) || again.at(key) != value)
        return fail("another instance returns a different config: '{}' is {}, expected {}", printable(key),
                    again.contains(key) ? again.at(key).dump() : "absent", value.dump());
    fail("another instance returns a different config: {} keys, expected {}", again.size(), config.size());
  }

  void examine_refusals() {
    for (const char* text : {"", "{", "[]", "{\"hidden_size\": -1}", "\xff"}) {
      const auto instance = make_();
      if (ModelPlugin(*instance).configure_refusal(text).empty())
        fail("it accepts the invalid config '{}'", printable(text));
    }
  }

  // Values that keep activations at about the same size, so that every part of the program affects the loss.
  void fill_parameters() {
    for (const auto& p : compiled_->parameters->all()) {
      std::vector<float> values(static_cast<size_t>(p->stored().num_elements()));
      random_normal(5, p->name, 0, values);
      const bool is_matrix = p->local_shape.size() > 1 && p->role != CHASSIS_ROLE_EMBEDDING;
      const double deviation = is_matrix ? 1.0 / std::sqrt(static_cast<double>(p->local_shape.back()))
                               : p->role == CHASSIS_ROLE_EMBEDDING ? 1.0
                                                                   : 0.2;
      for (float& value : values)
        value = static_cast<float>(deviation) * value + (p->init == CHASSIS_INIT_ONES ? 1.0f : 0.0f);
      p->stored().copy_from(Tensor::borrow(values.data(), p->stored().sizes(), Dtype::f32));
    }
    compiled_->parameters->update_values();
  }

  void examine_gradients() {
    if (const std::string unknown = unknown_field(compiled_->program); !unknown.empty())
      return fail("its gradients cannot be compared: {}", unknown);
    compiled_->parameters->allocate({});
    fill_parameters();
    Executor executor(*compiled_);
    try {
      executor.resolved(Purpose::kTraining);
      executor.resolved(Purpose::kLoss);
    } catch (const Error& error) {
      return fail("its gradients cannot be compared: {}", error.message());
    }
    const Fields batch = sample_fields(compiled_->program);
    compiled_->parameters->start_step();
    const double loss = executor.forward(0, batch, 1.0).item();
    executor.backward(0);
    if (!std::isfinite(loss)) return fail("its loss is {}", loss);
    for (const auto& p : compiled_->parameters->all()) examine_gradient(*p, executor, batch, loss);
  }

  // The direction is the gradient, which shows a wrong size, plus a random direction, which shows missing elements.
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
    constexpr double kStep = 1e-2;
    const auto loss_at = [&](double factor) {
      std::vector<float> moved(count);
      for (size_t i = 0; i < count; ++i) moved[i] = static_cast<float>(start[i] + factor * direction[i]);
      p.stored().copy_from(Tensor::borrow(moved.data(), p.stored().sizes(), Dtype::f32));
      compiled_->parameters->update_values();
      return executor.loss(batch).item();
    };
    const double got = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    loss_at(0);
    const double bound = 2e-2 * (std::abs(expected) + size) + 3e-7 * std::abs(loss) / kStep;
    if (!(std::abs(got - expected) <= bound))
      fail("the gradient of '{}' predicts that the loss changes by {:.5g} along a direction, but it changes by {:.5g}",
           p.name, expected, got);
  }

  const std::function<std::unique_ptr<Instance>()>& make_;
  const std::string& config_;
  const std::span<const OpsProvider> oracles_;
  std::optional<CompiledProgram> compiled_;
  std::vector<std::string> failures_;
};

}  // namespace

std::string sample_model_config(const std::vector<std::string>& architectures) {
  Json config{{"vocab_size", 61},
              {"hidden_size", 24},
              {"intermediate_size", 36},
              {"num_hidden_layers", 2},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 6},
              {"max_position_embeddings", 64},
              {"hidden_act", "silu"},
              {"initializer_range", 0.02},
              {"rms_norm_eps", 1e-5},
              {"tie_word_embeddings", false}};
  if (!architectures.empty()) config["architectures"] = Json::array({architectures.front()});
  return config.dump();
}

std::string configure_refusal(Instance& model, const std::string& config_json) {
  return ModelPlugin(model).configure_refusal(config_json);
}

std::vector<std::string> model_failures(const std::function<std::unique_ptr<Instance>()>& model,
                                        const std::string& config_json, std::span<const OpsProvider> oracles) {
  return ModelExamination(model, config_json, oracles).run();
}

}  // namespace chassis
