#include "host/program/model_conformance.hpp"

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
#include "host/plugin/status.hpp"
#include "host/plugin/text_sink.hpp"
#include "host/program/executor.hpp"
#include "host/service/rng.hpp"

namespace chassis {
namespace {

constexpr int64_t kBatch = 2, kTime = 8;

std::string attr_text(const AttrValue& value) {
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
}

// All that was recorded, for comparison; a line for each thing.
std::vector<std::string> lines_of(const Program& program) {
  std::vector<std::string> out;
  for (const Dim& dim : program.dims) out.push_back(fmt::format("dim {} = {}", dim.name, dim.size));
  for (const BlockType& block : program.blocks) {
    out.push_back("block " + block.name);
    for (const Slot& slot : block.slots)
      out.push_back(fmt::format("parameter {} {} role {} init {} {} tied to '{}'", slot.name,
                                program.global_shape(slot), slot.role, slot.init, slot.init_std, slot.tied_to));
    for (const Op& op : block.ops) {
      std::string attrs;
      for (const auto& [name, value] : op.attrs) attrs += " " + name + "=" + attr_text(value);
      out.push_back(fmt::format("op {} '{}' {} {}{}", op.id, op.name, op.inputs, op.params, attrs));
    }
    for (const auto& [name, value] : block.outputs) out.push_back(fmt::format("output {} = {}", name, value));
  }
  for (const Chain& chain : program.chains)
    out.push_back(fmt::format("chain {} {} {}", chain.name, chain.prefix, chain.blocks));
  return out;
}

// The first line that differs, in words; empty if none does.
std::string difference(const Program& got, const Program& expected) {
  const auto a = lines_of(got), b = lines_of(expected);
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? a[i] : "nothing", right = i < b.size() ? b[i] : "nothing";
    if (left != right) return fmt::format("\"{}\", before \"{}\"", printable(left), printable(right));
  }
  return "";
}

class Examination {
 public:
  Examination(const std::function<std::unique_ptr<Instance>()>& make, const std::string& config,
              std::span<const OpsProvider> oracles)
      : make_(make), config_(config), oracles_(oracles) {}

  std::vector<std::string> run() {
    const auto model = make_();
    configure(*model, config_);
    ResolveOptions resolve;
    resolve.batch = kBatch;
    resolve.time = kTime;
    resolve.kernels.assign(oracles_.begin(), oracles_.end());
    compiled_ = compile(recording_of(*model), {.resolve = std::move(resolve)});
    if (const std::string text = difference(record(*model), compiled_->program); !text.empty())
      fail("recorded a second time it has {}", text);
    examine_parameters();
    if (!failures_.empty()) return failures_;
    examine_disk_names(*model);
    examine_config(*model);
    examine_refusals();
    if (failures_.empty()) examine_gradients();
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  static const chassis_model_t& table_of(const Instance& model) {
    return model.interface<chassis_model_t>(CHASSIS_MODEL_ID);
  }
  static void configure(Instance& model, const std::string& config) {
    model.check(table_of(model).configure(model.get("configure"), str_of(config)));
  }
  static Recording recording_of(Instance& model) {
    return {[&model](const chassis_builder_t* b) { return table_of(model).record(model.get("record"), b); }};
  }
  static Program record(Instance& model) { return compile(recording_of(model), {}).program; }

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

  void examine_disk_names(Instance& model) {
    const chassis_model_t& table = table_of(model);
    // NULL: names are equal.
    const auto mapped = [&](auto function, const std::string& name) {
      if (function == nullptr) return name;
      TextSink sink;
      try {
        model.check(function(model.get("disk_name or parameter_name"), str_of(name), sink.get()));
      } catch (const Error& error) {
        fail("the name '{}' is refused: {}", printable(name), error.message());
      }
      return sink.text();
    };
    std::map<std::string, std::string> known;
    for (const auto& p : compiled_->parameters->all()) {
      const std::string on_disk = mapped(table.disk_name, p->name);
      if (on_disk.empty()) {
        fail("parameter '{}' has no name on disk", printable(p->name));
        continue;
      }
      if (const auto [at, fresh] = known.emplace(on_disk, p->name); !fresh)
        fail("parameters '{}' and '{}' have one name on disk, '{}'", printable(at->second), printable(p->name),
             printable(on_disk));
      const std::string back = mapped(table.parameter_name, on_disk);
      if (back != p->name)
        fail("parameter '{}' is '{}' on disk, which leads back to '{}'", printable(p->name), printable(on_disk),
             printable(back));
    }
  }

  void examine_config(Instance& model) {
    const chassis_model_t& table = table_of(model);
    TextSink first, second;
    model.check(table.config(model.get("config"), first.get()));
    const Json config = Json::parse(first.text(), nullptr, false);
    if (!config.is_object()) return fail("its config is no JSON object: '{}'", printable(first.text()));
    const auto other = make_();
    try {
      configure(*other, first.text());
    } catch (const Error& error) {
      return fail("another instance refuses the config that it gives: {}", error.message());
    }
    if (const std::string text = difference(record(*other), compiled_->program); !text.empty())
      fail("from the config that it gives another program is recorded: {}", text);
    other->check(table_of(*other).config(other->get("config"), second.get()));
    const Json again = Json::parse(second.text(), nullptr, false);
    if (again == config || !again.is_object()) return;
    for (const auto& [key, value] : config.items())
      if (!again.contains(key) || again.at(key) != value)
        return fail("its config does not come back: '{}' is {}, was {}", printable(key),
                    again.contains(key) ? again.at(key).dump() : "absent", value.dump());
    fail("its config does not come back: there are {} keys, were {}", again.size(), config.size());
  }

  void examine_refusals() {
    for (const char* text : {"", "{", "[]", "{\"hidden_size\": -1}", "\xff"}) {
      const auto model = make_();
      chassis_status_t* status = table_of(*model).configure(model->get("configure"), str_of(text));
      if (status == nullptr) fail("it takes the config '{}'", printable(text));
      status_release(status);
    }
  }

  // Values at which every part of the program matters: what flows through it neither grows nor fades.
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
    compiled_->parameters->publish();
  }

  Fields fields() const {
    Fields out;
    const auto dim = compiled_->program.find_dim("vocab");
    const int64_t vocab = dim ? compiled_->program.dims[*dim].size : 2;
    for (const char* name : {"input_ids", "positions", "document_ids", "labels"}) {
      const int64_t sizes[] = {kBatch, kTime};
      Tensor field = Tensor::empty(sizes, Dtype::i32);
      for (int64_t i = 0; i < kBatch * kTime; ++i) {
        const int64_t t = i % kTime;
        const bool labels = std::string_view(name) == "labels", ids = labels || std::string_view(name) == "input_ids";
        const int64_t value = ids ? (i * 7 + (labels ? 3 : 0)) % vocab : std::string_view(name) == "positions" ? t : 0;
        field.data_as<int32_t>()[i] = labels && i % 5 == 4 ? -100 : static_cast<int32_t>(value);
      }
      out[name] = std::move(field);
    }
    return out;
  }

  void examine_gradients() {
    compiled_->parameters->allocate({});
    fill_parameters();
    Executor executor(*compiled_);
    try {
      executor.resolved(Purpose::kTraining);
      executor.resolved(Purpose::kLoss);
    } catch (const Error& error) {
      return fail("its gradients cannot be compared: {}", error.message());
    }
    const Fields batch = fields();
    compiled_->parameters->start_step();
    const double loss = executor.forward(0, batch, 1.0).item();
    executor.backward(0);
    if (!std::isfinite(loss)) return fail("its loss is {}", loss);
    for (const auto& p : compiled_->parameters->all()) examine_gradient(*p, executor, batch, loss);
  }

  // Along the gradient, where its size shows, and along a direction of chance, where what it leaves out shows.
  void examine_gradient(Parameter& p, Executor& executor, const Fields& batch, double loss) {
    const auto count = static_cast<size_t>(p.stored().num_elements());
    std::vector<float> gradient(count), chance(count), start(count);
    const auto read = [](const Tensor& tensor, std::vector<float>& out) {
      Tensor::borrow(out.data(), tensor.sizes(), Dtype::f32).copy_from(tensor);
    };
    if (p.gradient_written) read(p.gradient, gradient);
    read(p.stored(), start);
    random_normal(6, p.name, 0, chance);
    const auto norm = [](const std::vector<float>& v) {
      double sum = 0;
      for (const float x : v) sum += static_cast<double>(x) * x;
      return std::sqrt(sum);
    };
    const double size = norm(gradient), chance_size = norm(chance);
    double expected = 0;
    std::vector<double> direction(count);
    for (size_t i = 0; i < count; ++i) {
      direction[i] = chance[i] / chance_size + (size > 0 ? gradient[i] / size : 0);
      expected += direction[i] * gradient[i];
    }
    constexpr double kStep = 1e-2;
    const auto loss_at = [&](double factor) {
      std::vector<float> moved(count);
      for (size_t i = 0; i < count; ++i) moved[i] = static_cast<float>(start[i] + factor * direction[i]);
      p.stored().copy_from(Tensor::borrow(moved.data(), p.stored().sizes(), Dtype::f32));
      compiled_->parameters->publish();
      return executor.loss(batch).item();
    };
    const double got = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    loss_at(0);
    const double bound = 2e-2 * (std::abs(expected) + size) + 3e-7 * std::abs(loss) / kStep;
    if (!(std::abs(got - expected) <= bound))
      fail("the gradient of '{}' says that the loss changes by {:.5g} along a direction, it changes by {:.5g}", p.name,
           expected, got);
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
  const auto& table = model.interface<chassis_model_t>(CHASSIS_MODEL_ID);
  chassis_status_t* status = table.configure(model.get("configure"), str_of(config_json));
  if (status == nullptr) return "";
  const std::string text = status_text(status);
  status_release(status);
  return text.empty() ? "without a word" : text;
}

std::vector<std::string> model_failures(const std::function<std::unique_ptr<Instance>()>& model,
                                        const std::string& config_json, std::span<const OpsProvider> oracles) {
  return Examination(model, config_json, oracles).run();
}

}  // namespace chassis
