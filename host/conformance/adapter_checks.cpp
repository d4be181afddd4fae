// Adapts small models twice and compares; differentiates and merges in fp64.
#include "host/conformance/adapter_checks.hpp"

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/lower_case.hpp"
#include "host/base/printable.hpp"
#include "host/compile/adapter_pass.hpp"
#include "host/conformance/model_checks.hpp"
#include "host/conformance/sample_program.hpp"
#include "host/execute/executor.hpp"
#include "host/graph/op_table.hpp"
#include "host/graph/rewrite.hpp"
#include "host/save/adapter_parts.hpp"
#include "host/service/rng.hpp"
#include "host/session/run_adapter.hpp"

namespace chassis {
namespace {

// Gradients are stored in fp32, and so are merged parameters; everything else is computed in fp64.
constexpr double kGradientBound = 1e-5, kMergeBound = 1e-5, kSameLoss = 1e-9;

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

// Random bits would make the loss differ between two calls.
class WithoutDropout final : public RewritePass {
 public:
  std::string name() const override { return "without dropout"; }
  void rewrite(Program& program, const Report&) const override {
    for (BlockType& block : program.blocks)
      for (size_t i = 0; i < block.ops.size();) {
        if (!block.ops[i].spec().is_random) {
          ++i;
          continue;
        }
        const Op op = block.ops[i];
        block.ops.erase(block.ops.begin() + static_cast<std::ptrdiff_t>(i));
        replace_uses(block, op.outputs[0], op.inputs[0], i);
      }
  }
};

// An adapter as a pass.
class Adapted {
 public:
  Adapted(std::unique_ptr<Instance> instance, const AdapterBase& base, const std::string& config)
      : instance_(std::move(instance)), plugin_(*instance_), pass_(plugin_, [&base](const Program& recorded) {
          return base.model ? file_names(*base.model, recorded) : FileNames();
        }) {
    plugin_.configure(config);
  }
  const AdapterPlugin& plugin() const { return plugin_; }
  std::string id() const { return instance_->id(); }
  const RewritePass& pass() const { return pass_; }
  // Throws a config error if the plugin refuses the base.
  Program program(const AdapterBase& base) const {
    return compile(base.program, {.passes = {.adapters = {&pass_}}}).program();
  }

 private:
  std::unique_ptr<Instance> instance_;
  AdapterPlugin plugin_;
  AdapterPass pass_;
};

class Evaluation {
 public:
  Evaluation(Program program, std::span<const OpsProvider> oracles) : fields_(sample_fields(program)) {
    ResolveOptions resolve;
    resolve.batch = kSampleBatch;
    resolve.time = kSampleTime;
    resolve.compute = Dtype::f64;
    resolve.kernels.assign(oracles.begin(), oracles.end());
    static const WithoutDropout without_dropout;
    compiled_.emplace(compile(std::move(program), {.passes = {.adapters = {&without_dropout}}, .resolve = resolve}));
    storage_.emplace(compiled_->parameters(), Device{});
    executor_.emplace(*compiled_);
  }

  ParameterTable& parameters() { return compiled_->parameters(); }

  // Computed from the logits, because the op cross_entropy rounds to fp32.
  double loss() {
    const Tensor logits = executor_->logits(fields_, {}, false);
    const int64_t vocab = logits.sizes().back();
    const auto* rows = logits.data_as<double>();
    const auto* labels = fields_.at("labels").data_as<int32_t>();
    double sum = 0;
    for (int64_t row = 0; row < kSampleBatch * kSampleTime; ++row) {
      if (labels[row] < 0) continue;
      double total = 0;
      for (int64_t v = 0; v < vocab; ++v) total += std::exp(rows[row * vocab + v] - rows[row * vocab + labels[row]]);
      sum += std::log(total);
    }
    return sum;
  }

  void compute_gradients() {
    parameters().start_step();
    executor_->forward(0, fields_, 1.0);
    executor_->backward(0);
  }

 private:
  Fields fields_;
  std::optional<CompiledProgram> compiled_;
  std::optional<ParameterStorage> storage_;
  std::optional<Executor> executor_;
};

void set_values(const Parameter& p, std::vector<float>& values) {
  p.stored().copy_from(Tensor::borrow(values.data(), p.stored().sizes(), Dtype::f32));
}

// An op of the base that the adapter has extended, with what merging needs to know of it.
struct ExtendedOp {
  std::string module;               // its name in files
  std::vector<std::string> params;  // parameters of the base
  // Tensors that the adapter added, also to ops whose values it reads for this one: full name, and name in the module.
  std::vector<std::pair<std::string, std::string>> tensors;
  bool is_tied = false;
};

class AdapterExamination {
 public:
  AdapterExamination(const AdapterMaker& make, const AdapterMaker& make_reader, const AdapterBase& base,
                     std::span<const OpsProvider> oracles, AdapterReport& report)
      : make_(make), make_reader_(make_reader), base_(base), oracles_(oracles), report_(report) {}

  // Returns why the adapter refuses the base; empty if it does not.
  std::string run() {
    const Adapted adapted(make_(), base_, "");
    std::optional<Program> program;
    try {
      program = adapted.program(base_);
    } catch (const Error& refusal) {
      if (refusal.code() == ExitCode::kConfig) return refusal.message();
      fail("its program is not valid: {}", refusal.message());
      return "";
    }
    const Adapted again(make_(), base_, "");
    if (const std::string text = difference(again.program(base_), *program); !text.empty()) {
      fail("another instance records a different program: {}", text);
      return "";
    }
    examine_config(adapted, *program);
    if (const std::string unknown = unknown_field(*program); !unknown.empty()) {
      note("nothing is computed: " + unknown);
      return "";
    }
    examine_numerics(adapted, *program);
    return "";
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    report_.failures.push_back(base_.name + ": " + fmt::format(format, std::forward<Args>(args)...));
  }
  void note(const std::string& text) {
    report_.left_out += (report_.left_out.empty() ? "" : "; ") + base_.name + ": " + text;
  }

  void examine_config(const Adapted& adapted, const Program& program) {
    const std::string text = adapted.plugin().config("base", base_.config_json);
    const Json config = Json::parse(text, nullptr, false);
    if (!config.is_object()) return fail("its config is not a JSON object: '{}'", printable(text));
    // By these keys a directory of the adapter is recognized as one of this plugin, for this base.
    const auto names = [&](const char* key, const std::string& expected) {
      const auto found = config.find(key);
      if (found != config.end() && found->is_string() && lower_case(found->get<std::string>()) == expected) return;
      fail("its config has {} as \"{}\", expected \"{}\"", found == config.end() ? "nothing" : printable(found->dump()),
           key, expected);
    };
    names("peft_type", adapted.id());
    names("base_model_name_or_path", "base");
    try {
      const Adapted other(make_reader_(), base_, text);
      if (const std::string differs = difference(other.program(base_), program); !differs.empty())
        fail("another instance records a different program from its config: {}", differs);
    } catch (const Error& error) {
      fail("another instance refuses its config: {}", error.message());
    }
  }

  // The tensors that it declares are whole, and are read as they were written.
  void examine_files(const Adapted& adapted, const ParameterTable& parameters) {
    try {
      const std::string model_config = base_.model ? base_.model->config() : base_.config_json;
      const auto written = adapter_parts(adapted.plugin(), parameters, model_config);
      std::map<std::string, DiskTensor> tensors;
      std::map<std::string, int64_t> num_elements;
      for (const auto& [parameter, parts] : written)
        for (const StoredPart& part : parts) {
          const auto [known, is_new] = tensors.try_emplace(part.disk_name);
          if (is_new)
            known->second = {part.disk_name, Dtype::f32, part.disk_shape, {}};
          else if (known->second.global_shape != part.disk_shape)
            return fail("in its files '{}' has two shapes", part.disk_name);
          num_elements[part.disk_name] += numel(part.box);
        }
      std::vector<DiskTensor> in_files;
      for (const auto& [name, tensor] : tensors) {
        if (num_elements[name] != numel(tensor.global_shape))
          return fail("in its files '{}' has {} elements, of which {} belong to parameters", name,
                      numel(tensor.global_shape), num_elements[name]);
        in_files.push_back(tensor);
      }
      const Adapted other(make_reader_(), base_, adapted.plugin().config("base", base_.config_json));
      other.program(base_);
      if (adapter_parts(other.plugin(), parameters, model_config, in_files) != written)
        fail("another instance reads its files otherwise than it writes them");
    } catch (const Error& error) {
      fail("its files are not valid: {}", error.message());
    }
  }

  void examine_numerics(const Adapted& adapted, const Program& program) {
    std::optional<Evaluation> with, without;
    try {
      with.emplace(program, oracles_);
      without.emplace(base_.program, oracles_);
      examine_files(adapted, with->parameters());
      examine_start(*with, *without);
    } catch (const Error& error) {
      return fail("its ops cannot be computed: {}", error.message());
    }
    fill_sample_values(with->parameters(), ParameterTable::Which::kAdded);
    examine_gradients(*with);
    try {
      examine_merge(adapted.plugin(), program, *with, *without);
    } catch (const Error& error) {
      fail("it cannot be merged: {}", error.message());
    }
  }

  void examine_start(Evaluation& with, Evaluation& without) {
    fill_sample_values(without.parameters());
    fill_sample_values(with.parameters());
    with.parameters().initialize(3, ParameterTable::Which::kAdded);
    const double base = without.loss(), start = with.loss();
    if (!std::isfinite(start)) return fail("with fresh values of its parameters the loss is {}", start);
    if (std::abs(start - base) > kSameLoss * std::abs(base))
      note(fmt::format("with fresh values of its parameters the loss is {:.6g}, that of the base {:.6g}", start, base));
  }

  void examine_gradients(Evaluation& with) {
    with.compute_gradients();
    bool any = false;
    for (const auto& p : with.parameters().all()) {
      if (p->trainable) examine_gradient(*p, with);
      any |= p->trainable;
    }
    if (!any) fail("it trains no parameter");
  }

  // The direction is the gradient, to reveal a wrong size, plus a random direction, to reveal missing elements.
  void examine_gradient(Parameter& p, Evaluation& with) {
    const auto count = static_cast<size_t>(p.stored().num_elements());
    std::vector<float> gradient(count), random(count), start = float_values(p.stored());
    if (p.gradient_written) gradient = float_values(p.gradient);
    random_normal(6, p.name, 0, random);
    const auto norm = [](const std::vector<float>& v) {
      double sum = 0;
      for (const float x : v) sum += static_cast<double>(x) * x;
      return std::sqrt(sum);
    };
    const double size = norm(gradient), random_size = norm(random);
    if (size == 0) return fail("no gradient reaches '{}': nothing that is computed depends on it", p.name);
    std::vector<double> direction(count);
    double expected = 0;
    for (size_t i = 0; i < count; ++i) {
      direction[i] = random[i] / random_size + (size > 0 ? gradient[i] / size : 0);
      expected += direction[i] * gradient[i];
    }
    constexpr double kStep = 1e-5;
    const auto loss_at = [&](double factor) {
      std::vector<double> moved(count);
      for (size_t i = 0; i < count; ++i) moved[i] = start[i] + factor * direction[i];
      p.value.copy_from(Tensor::borrow(moved.data(), p.value.sizes(), Dtype::f64));
      return with.loss();
    };
    const double got = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    with.parameters().update_values();
    if (!(std::abs(got - expected) <= kGradientBound * (std::abs(expected) + size) + 1e-7))
      fail("the gradient of '{}' predicts that the loss changes by {:.7g} along a direction, but it changes by {:.7g}",
           p.name, expected, got);
  }

  // The module of a recorded parameter to which an added one belongs.
  static std::string extended_module(const BlockType& recorded, const std::string& added) {
    std::string longest;
    for (const ParameterSlot& slot : recorded.slots)
      if (const std::string module = module_of(slot.name);
          module.size() > longest.size() && added.starts_with(module + "."))
        longest = module;
    return longest;
  }

  std::vector<ExtendedOp> extended_ops(const Program& program) const {
    const FileNames files = base_.model ? file_names(*base_.model, base_.program) : FileNames();
    const auto file_name = [&](const std::string& name) {
      const auto found = files.of.find(name);
      return found == files.of.end() ? name : found->second;
    };
    std::vector<ExtendedOp> out;
    for (size_t c = 0; c < program.chains.size(); ++c) {
      const Chain& chain = program.chains[c];
      for (size_t i = 0; i < chain.blocks.size(); ++i) {
        const BlockType& recorded = base_.program.blocks[base_.program.chains[c].blocks[i]];
        for (const Op& op : recorded.ops) {
          if (op.params.empty()) continue;
          ExtendedOp extended;
          const ParameterSlot& first = recorded.slots[op.params[0]];
          for (const SlotId id : op.params) {
            const ParameterSlot& slot = recorded.slots[id];
            extended.is_tied |= !slot.tied_to.empty();
            extended.params.push_back(slot.tied_to.empty() ? chain.parameter_name(i, slot) : slot.tied_to);
          }
          extended.module = module_of(file_name(chain.parameter_name(i, first)));
          for (const ParameterSlot& slot : program.blocks[chain.blocks[i]].slots) {
            if (!slot.added) continue;
            const std::string module = extended_module(recorded, slot.name);
            if (module == module_of(first.name) || std::ranges::count(slot.shared_by, module_of(first.name)) > 0)
              extended.tensors.emplace_back(chain.parameter_name(i, slot), slot.name.substr(module.size() + 1));
          }
          if (!extended.tensors.empty()) out.push_back(std::move(extended));
        }
      }
    }
    return out;
  }

  void examine_merge(const AdapterPlugin& plugin, const Program& program, Evaluation& with, Evaluation& without) {
    if (!plugin.can_merge()) return note("it cannot be merged");
    for (const auto& p : without.parameters().all()) {
      const Parameter* trained = with.parameters().find(p->name);
      std::vector<float> values = float_values(trained->stored());
      set_values(*p, values);
    }
    for (const ExtendedOp& op : extended_ops(program)) {
      if (op.is_tied) return note("merging is not tested, because '" + op.module + "' is tied");
      for (const std::string& name : op.params) merge(plugin, op, *without.parameters().find(name), with.parameters());
    }
    without.parameters().update_values();
    const double merged = without.loss(), expected = with.loss();
    if (!(std::abs(merged - expected) <= kMergeBound * std::abs(expected)))
      fail("merged into the base, the loss is {:.8g}; with the adapter's ops it is {:.8g}", merged, expected);
  }

  void merge(const AdapterPlugin& plugin, const ExtendedOp& op, const Parameter& p, const ParameterTable& adapted) {
    std::vector<std::vector<float>> values;
    std::vector<chassis_adapter_tensor_t> tensors(op.tensors.size());
    std::vector<const chassis_adapter_tensor_t*> pointers;
    for (size_t i = 0; i < op.tensors.size(); ++i) {
      const Parameter& added = *adapted.find(op.tensors[i].first);
      values.push_back(float_values(added.stored()));
      tensors[i].struct_size = sizeof(tensors[i]);
      tensors[i].num_dims = static_cast<uint32_t>(added.local_shape.size());
      tensors[i].name = {op.tensors[i].second.data(), op.tensors[i].second.size()};
      tensors[i].sizes = added.local_shape.data();
      tensors[i].values = values.back().data();
      pointers.push_back(&tensors[i]);
    }
    const std::string parameter = p.name.substr(p.name.rfind('.') + 1);
    const size_t ndim = p.local_shape.size();
    const int64_t num_experts = ndim == 3 ? p.local_shape[0] : 1;
    const int64_t rows = p.local_shape[ndim == 3 ? 1 : 0];
    const int64_t columns = p.stored().num_elements() / rows / num_experts;
    const std::vector<float> before = float_values(p.stored());
    // Each box is passed as a separate array.
    const auto merge_matrix = [&](std::vector<float>& into, int64_t expert, int64_t row, int64_t num_rows,
                                  int64_t column, int64_t num_columns) {
      std::vector<float> box(static_cast<size_t>(num_rows * num_columns));
      const auto at = [&](int64_t r) { return static_cast<size_t>((expert * rows + row + r) * columns + column); };
      const size_t row_bytes = static_cast<size_t>(num_columns) * sizeof(float);
      for (int64_t r = 0; r < num_rows; ++r)
        std::memcpy(box.data() + r * num_columns, before.data() + at(r), row_bytes);
      chassis_adapter_merge_t merge{};
      merge.struct_size = sizeof(merge);
      merge.num_tensors = static_cast<uint32_t>(pointers.size());
      merge.module = {op.module.data(), op.module.size()};
      merge.parameter = {parameter.data(), parameter.size()};
      merge.row_begin = row, merge.num_rows = num_rows;
      merge.column_begin = column, merge.num_columns = num_columns;
      merge.values = box.data();
      merge.tensors = pointers.data();
      merge.expert = expert;
      merge.name = {p.name.data(), p.name.size()};
      plugin.merge(merge);
      for (int64_t r = 0; r < num_rows; ++r) std::memcpy(into.data() + at(r), box.data() + r * num_columns, row_bytes);
    };
    const auto merge_box = [&](std::vector<float>& into, int64_t row, int64_t num_rows, int64_t column,
                               int64_t num_columns) {
      if (num_rows == 0 || num_columns == 0) return;
      for (int64_t e = 0; e < num_experts; ++e) merge_matrix(into, e, row, num_rows, column, num_columns);
    };
    std::vector<float> whole = before, in_boxes = before;
    merge_box(whole, 0, rows, 0, columns);
    const int64_t row = rows / 3, column = columns / 2;
    for (const auto& [r, num_rows] : {std::pair(int64_t{0}, row), std::pair(row, rows - row)})
      for (const auto& [c, num_columns] : {std::pair(int64_t{0}, column), std::pair(column, columns - column)})
        merge_box(in_boxes, r, num_rows, c, num_columns);
    for (size_t i = 0; i < whole.size(); ++i) {
      if (has_same_bits(whole[i], in_boxes[i])) continue;
      fail("element {} of '{}' is {} when it is merged whole, and {} when it is merged in 4 boxes", i, p.name, whole[i],
           in_boxes[i]);
      break;
    }
    set_values(p, whole);
  }

  const AdapterMaker &make_, &make_reader_;
  const AdapterBase& base_;
  const std::span<const OpsProvider> oracles_;
  AdapterReport& report_;
};

void examine_refusals(const std::function<std::unique_ptr<Instance>()>& make, AdapterReport& report) {
  for (const char* text : {"{", "[]", "12", "\xff", "{\"peft_type\": \"NO_SUCH_ADAPTER\"}"}) {
    const auto instance = make();
    try {
      AdapterPlugin(*instance).configure(text);
    } catch (const Error&) {
      continue;
    }
    report.failures.push_back(fmt::format("it accepts the invalid config '{}'", printable(text)));
  }
}

}  // namespace

std::vector<std::string> adapter_base_configs(const std::vector<std::string>& architectures) {
  std::vector<std::string> texts;
  for (const std::string& text : sample_model_configs(architectures)) {
    Json config = Json::parse(text);
    // Wide enough for the usual ranks of adapters.
    config.update(Json{{"hidden_size", 48}, {"intermediate_size", 72}, {"head_dim", 12}});
    texts.push_back(config.dump());
  }
  Json other{{"vocab_size", 61}, {"n_embd", 48}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 64}};
  if (!architectures.empty()) other["architectures"] = Json::array({architectures.front()});
  texts.push_back(other.dump());
  return texts;
}

AdapterReport examine_adapter(const AdapterMaker& adapter, std::span<const AdapterBase> bases,
                              std::span<const OpsProvider> oracles, const AdapterMaker& reader) {
  AdapterReport report;
  examine_refusals(adapter, report);
  for (const AdapterBase& base : bases) {
    const std::string refusal = AdapterExamination(adapter, reader ? reader : adapter, base, oracles, report).run();
    if (refusal.empty())
      ++report.num_bases;
    else
      report.left_out +=
          (report.left_out.empty() ? "" : "; ") + ("it refuses the model '" + base.name + "': " + refusal);
  }
  return report;
}

}  // namespace chassis
