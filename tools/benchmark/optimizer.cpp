// Steps an optimizer on one parameter of a hidden layer, in host memory.
//   chassis-optimizer PLUGIN ROWS COLUMNS STEPS THREADS            prints a line of JSON: seconds of each step
//   chassis-optimizer PLUGIN ROWS COLUMNS STEPS THREADS IN OUT     also reads and writes tensors, for tests: IN has lr
//       and weight_decay as fp64, the parameter and the gradient of each step as fp32; OUT gets the parameter and the
//       states after each step, without gaps
//   … --set NAME=JSON                                              an option of the plugin
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/execute/optimizer_plugin.hpp"
#include "host/plugin/option_schema.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/host_services.hpp"
#include "host/service/memory.hpp"
#include "host/service/metrics.hpp"
#include "host/service/rng.hpp"
#include "host/service/tensor.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
using Sizes = std::vector<int64_t>;

class Bench {
 public:
  Bench(const std::string& plugin, const Shape& shape, const std::map<std::string, Json>& options)
      : shape_(shape), facts_("weight", CHASSIS_ROLE_WEIGHT, shape, {Box::whole(shape)}) {
    PluginFolder folder{CHASSIS_BENCHMARK_PLUGINS, "benchmark", true, {}};
    registry_ = std::make_unique<PluginRegistry>(PluginIndex({folder}), LoadPolicy{}, services_);
    Json all = registry_->create_default("optimizer", plugin)->context().options;
    for (const auto& [name, value] : options) all[name] = value;
    instance_ = registry_->create("optimizer", plugin, std::move(all));
    instance_->prepare();
    instance_->activate();
    plugin_ = std::make_unique<OptimizerPlugin>(*instance_);
    const Sizes sizes(shape.begin(), shape.end());
    param_ = Tensor::zeros(sizes, Dtype::f32);
    grad_ = Tensor::zeros(sizes, Dtype::f32);
    for (const chassis_state_desc_t& state : plugin_->states(facts_)) {
      const bool per_block = state.shape == CHASSIS_STATE_PER_BLOCK;
      const Sizes blocks = {(numel(shape) + state.block - 1) / std::max<int64_t>(1, state.block)};
      states_.push_back(Tensor::zeros(per_block ? blocks : sizes, static_cast<Dtype>(state.dtype)));
      if (state.initial != 0) states_.back().fill(state.initial);
    }
  }

  void fill_random() {
    for (const auto& [name, tensor] : {std::pair("parameter", &param_), std::pair("gradient", &grad_)})
      random_normal(3, name, 0, {tensor->data_as<float>(), static_cast<size_t>(tensor->num_elements())});
  }

  double step(int64_t number, double lr, double weight_decay) {
    const std::vector<const chassis_optimizer_parameter_t*> facts = {facts_.raw()};
    const uint64_t scratch_bytes = plugin_->workspace_bytes(facts);
    if (scratch_bytes > 0 && !scratch_) scratch_ = Tensor::empty(Sizes{static_cast<int64_t>(scratch_bytes)}, Dtype::u8);
    std::vector<chassis_tensor_t> params = {param_.handle()}, grads = {grad_.handle()}, states;
    for (const Tensor& state : states_) states.push_back(state.handle());
    const auto num_states = static_cast<uint32_t>(states.size());
    chassis_optimizer_step_t args{};
    args.struct_size = sizeof args;
    args.num_tensors = 1;
    args.step = number;
    args.lr = lr;
    args.grad_scale = 1.0;
    args.params = params.data();
    args.grads = grads.data();
    args.states = states.data();
    args.weight_decay = &weight_decay;
    args.workspace = scratch_ ? scratch_.data() : nullptr;
    args.workspace_bytes = scratch_bytes;
    args.num_states = &num_states;
    args.parameters = facts.data();
    const auto start = Clock::now();
    plugin_->step(args);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void read(std::ifstream& in, const char* what) {
    const Tensor& tensor = std::strcmp(what, "gradient") == 0 ? grad_ : param_;
    if (!in.read(tensor.data_as<char>(), static_cast<std::streamsize>(tensor.num_bytes())))
      throw std::runtime_error(std::string("the input ends before the ") + what);
  }
  void write(std::ofstream& out) const {
    out.write(param_.data_as<char>(), static_cast<std::streamsize>(param_.num_bytes()));
    for (const Tensor& state : states_)
      out.write(state.data_as<char>(), static_cast<std::streamsize>(state.num_bytes()));
  }

 private:
  Shape shape_;
  SteppedParameter facts_;
  MetricsStore metrics_;
  HostServices services_{0, metrics_};
  std::unique_ptr<PluginRegistry> registry_;
  std::unique_ptr<Instance> instance_;
  std::unique_ptr<OptimizerPlugin> plugin_;
  Tensor param_, grad_, scratch_;
  std::vector<Tensor> states_;
};

void run(const std::vector<std::string>& words, const std::map<std::string, Json>& options) {
  const Shape shape{std::stoll(words.at(1)), std::stoll(words.at(2))};
  const int64_t steps = std::stoll(words.at(3));
  set_threads(std::stoi(words.at(4)));
  Bench bench(words.at(0), shape, options);
  double settings[] = {1e-3, 0.1};
  std::ifstream in;
  std::ofstream out;
  const bool has_files = words.size() > 6;
  if (has_files) {
    in.open(words[5], std::ios::binary);
    out.open(words[6], std::ios::binary);
    if (!in.read(reinterpret_cast<char*>(settings), sizeof settings)) throw std::runtime_error("no input " + words[5]);
    bench.read(in, "parameter");
  } else {
    bench.fill_random();
  }
  std::string text;
  for (int64_t number = 1; number <= steps; ++number) {
    if (has_files) bench.read(in, "gradient");
    text += (text.empty() ? "" : ", ") + std::to_string(bench.step(number, settings[0], settings[1]));
    if (has_files) bench.write(out);
  }
  std::printf("{\"elements\": %lld, \"seconds\": [%s]}\n", static_cast<long long>(numel(shape)), text.c_str());
}

}  // namespace
}  // namespace chassis

int main(int argc, char** argv) {
  std::vector<std::string> words;
  std::map<std::string, chassis::Json> options;
  try {
    chassis::install_memory_allocator();  // as the program does
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word != "--set") {
        words.push_back(word);
        continue;
      }
      const std::string assignment = i + 1 < argc ? argv[++i] : "";
      const size_t equals = assignment.find('=');
      if (equals == std::string::npos) throw std::runtime_error("--set NAME=JSON");
      options[assignment.substr(0, equals)] = chassis::Json::parse(assignment.substr(equals + 1));
    }
    chassis::run(words, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "chassis-optimizer: %s\n", error.what());
    return 1;
  }
}
