// Measures the cost of the plugin boundary on the model of tools/bench: the number of calls into plugins in a training
// step, the time of a call that only reads its operands, and the time of a step whose kernels compute nothing.
//   OMP_WAIT_POLICY=PASSIVE build/release/bin/chassis-boundary [--benchmark_…]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "host/session/session.hpp"

namespace {

using namespace chassis;

constexpr int64_t kBatch = 4, kTime = 512, kVocab = 8192;
constexpr char kConfig[] = R"(
[run]
device = "cpu"
max_steps = 1
[model]
plugin = "llama"
config = { vocab_size = 8192, hidden_size = 384, num_hidden_layers = 6, num_attention_heads = 6, num_key_value_heads = 2, intermediate_size = 1024 }
[[data.train]]
path = "none.jsonl"
format = "tokens"
[train]
seq_len = 512
micro_batch_size = 4
[precision]
compute = "fp32"
[optimizer]
lr = 1e-3
)";

int64_t num_calls = 0;                                            // into plugins, in a step
std::map<const chassis_instance*, const chassis_ops_t*> counted;  // the plugins' own tables, by instance

template <auto Entry>
chassis_status_t* count(chassis_instance* self, void* kernel, chassis_call_t* call) {
  ++num_calls;
  return (counted.at(self)->*Entry)(self, kernel, call);
}

class Model {
 public:
  Model(const std::string& attention, const std::string& kernels)
      : session_(load_config_text(kConfig, "boundary", {"attention.plugin=" + attention, "kernels.plugins=" + kernels}),
                 {.plugin_path = {CHASSIS_BENCHMARK_PLUGINS}}) {
    session_.allocate();
    session_.parameters().initialize(1);
    const int64_t sizes[] = {kBatch, kTime};
    for (const char* name : {"input_ids", "labels", "positions", "document_ids"}) {
      const Tensor field = fields_[name] = Tensor::zeros(sizes, Dtype::i32);
      const bool is_token = name == std::string_view("input_ids") || name == std::string_view("labels");
      for (int64_t i = 0; i < kBatch * kTime; ++i)
        field.data_as<int32_t>()[i] = static_cast<int32_t>(is_token         ? i * 7919 % kVocab
                                                           : name[0] == 'p' ? i % kTime
                                                                            : 0);
    }
  }

  Executor& executor() { return session_.executor(); }

  void step(Executor& executor) {
    session_.parameters().start_step();
    executor.forward(0, fields_, 1.0 / (kBatch * kTime));
    executor.backward(0);
  }

  // The number of calls into plugins in one step.
  int64_t calls_per_step() {
    auto& options = const_cast<ResolveOptions&>(session_.compiled().options());  // its nodes call through these
    std::map<const chassis_instance*, chassis_ops_t> tables;
    for (auto* providers : {&options.attention, &options.kernels})
      for (OpsProvider& provider : *providers) {
        counted[provider.self] = provider.table;
        chassis_ops_t& table = tables[provider.self] = *provider.table;
        table.forward = count<&chassis_ops_t::forward>;
        table.backward_inputs = count<&chassis_ops_t::backward_inputs>;
        table.backward_params = count<&chassis_ops_t::backward_params>;
        if (table.forward_backward != nullptr) table.forward_backward = count<&chassis_ops_t::forward_backward>;
        provider.table = &table;
      }
    num_calls = 0;
    step(executor());
    for (auto* providers : {&options.attention, &options.kernels})
      for (OpsProvider& provider : *providers) provider.table = counted[provider.self];
    return num_calls;
  }

 private:
  Session session_;
  Fields fields_;
};

// Calls forward of the first linear layer, on tensors that already exist.
void call_empty_forward(benchmark::State& state, Model& model) {
  for (const Node& node : model.executor().resolved(Purpose::kTraining).units[1]->nodes) {
    if (node.pattern != "linear") continue;
    const int64_t sizes[] = {kBatch, kTime, 384};
    const Tensor x = Tensor::empty(sizes, Dtype::f32), y = x.clone(), weight = x.clone();
    chassis_tensor_t inputs[] = {x.handle()}, params[] = {weight.handle(), nullptr}, outputs[] = {y.handle()};
    chassis_call_t call{};
    call.struct_size = sizeof call;
    call.inputs = inputs;
    call.params = params;
    call.outputs = outputs;
    for (auto _ : state)
      benchmark::DoNotOptimize(node.provider->table->forward(node.provider->self, node.kernel.get(), &call));
    return;
  }
}

// Reports the CPU time of the calling thread, which varies less than the wall clock on a busy machine.
class BestRuns : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      const double time = run.cpu_accumulated_time / static_cast<double>(run.iterations);
      const auto [best, fresh] = seconds.try_emplace(run.run_name.function_name, time);
      best->second = std::min(best->second, time);
    }
    ConsoleReporter::ReportRuns(runs);
  }
  std::map<std::string, double> seconds;  // fastest repetition, by benchmark
};

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  Model real("interval", "[\"fused\", \"aten\"]"), empty("boundary_empty", "[\"boundary_empty\"]");
  const auto steps = [](Model& model) {
    return [&model](benchmark::State& state) {
      for (auto _ : state) model.step(model.executor());
    };
  };
  benchmark::RegisterBenchmark("call", [&](benchmark::State& state) {
    call_empty_forward(state, empty);
  })->Repetitions(5);
  benchmark::RegisterBenchmark("step_of_empty_kernels", steps(empty))->Repetitions(5);
  benchmark::RegisterBenchmark("step", steps(real))->Iterations(2)->Repetitions(5);
  BestRuns runs;
  benchmark::RunSpecifiedBenchmarks(&runs);
  if (runs.seconds.size() != 3) return 0;

  const int64_t calls = real.calls_per_step();
  const double step = runs.seconds["step"], of_calls = static_cast<double>(calls) * runs.seconds["call"];
  std::printf("\nforward and backward of %ld tokens: %.0f ms, %ld calls into plugins\n",
              static_cast<long>(kBatch * kTime), 1e3 * step, static_cast<long>(calls));
  std::printf("the calls alone, %.0f ns each: %.4f %%\n", 1e9 * runs.seconds["call"], 100.0 * of_calls / step);
  std::printf("the host's work around %ld calls of empty kernels included: %.4f %%\n",
              static_cast<long>(empty.calls_per_step()), 100.0 * runs.seconds["step_of_empty_kernels"] / step);
  return 0;
}
