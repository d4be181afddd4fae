// A small model on the CPU, for tests of the executor and of what it calls.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/execute/executor.hpp"
#include "host/execute/rehearsal.hpp"
#include "tests/support/loaded_plugins.hpp"
#include "tests/support/recorder.hpp"

namespace chassis::test {

inline Tensor ids_tensor(const std::vector<int32_t>& values, int64_t rows) {
  const int64_t sizes[] = {rows, static_cast<int64_t>(values.size()) / rows};
  Tensor tensor = Tensor::empty(sizes, Dtype::i32);
  std::copy(values.begin(), values.end(), tensor.data_as<int32_t>());
  return tensor;
}

// Labels are the ids shifted by one; the last of each row is masked.
inline Fields fields_of(const std::vector<int32_t>& ids, int64_t rows) {
  const int64_t time = static_cast<int64_t>(ids.size()) / rows;
  std::vector<int32_t> labels(ids.size(), -100), positions(ids.size()), documents(ids.size(), 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % time);
    if (positions[i] + 1 < time) labels[i] = ids[i + 1];
  }
  return {{"input_ids", ids_tensor(ids, rows)},
          {"labels", ids_tensor(labels, rows)},
          {"positions", ids_tensor(positions, rows)},
          {"document_ids", ids_tensor(documents, rows)}};
}

inline std::vector<float> values_of(const Tensor& tensor) {
  const Tensor whole = tensor.contiguous().to(Dtype::f32);
  return {whole.data_as<float>(), whole.data_as<float>() + whole.num_elements()};
}

inline double largest_difference(const Tensor& a, const Tensor& b) {
  const auto x = values_of(a), y = values_of(b);
  double largest = x.size() == y.size() ? 0.0 : INFINITY;
  for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
    const double difference = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    if (!(difference <= largest)) largest = difference;  // NaN counts as a difference
  }
  return largest;
}

struct CpuRun {
  CompiledProgram compiled;
  ParameterTable& parameters;
  std::optional<ParameterStorage> storage;
  std::unique_ptr<Executor> executor;

  CpuRun(Program recorded, std::vector<OpsProvider> kernels, std::vector<OpsProvider> attention = {}, int64_t batch = 2,
         int64_t time = 3, Dtype compute = Dtype::f32)
      : compiled(compile(std::move(recorded), {.resolve = {.compute = compute,
                                                           .batch = batch,
                                                           .time = time,
                                                           .attention = std::move(attention),
                                                           .kernels = std::move(kernels)}})),
        parameters(compiled.parameters()) {
    storage.emplace(parameters, Device{});
    parameters.initialize(7);
    make(Recompute::kNone);
  }
  void make(Recompute recompute, UnitEvents* events = nullptr) {
    compiled = compiled.with_recompute(recompute);
    executor = std::make_unique<Executor>(compiled, ExecutorParts{.events = events});
  }
  // Makes an executor for tensors on a meta device.
  void rehearse_on(Device meta) {
    executor = std::make_unique<Executor>(compiled, ExecutorParts{.backend = std::make_shared<const Rehearsal>(meta)});
  }

  // Runs forward and backward of the micro-batches. Returns the summed loss.
  double step(const std::vector<Fields>& micro_batches, double loss_scale = 1.0) {
    parameters.start_step();
    double loss = 0.0;
    for (size_t m = 0; m < micro_batches.size(); ++m) {
      loss += executor->forward(static_cast<int>(m), micro_batches[m], loss_scale).item();
      executor->backward(static_cast<int>(m));
    }
    return loss;
  }
  // Copies, because buffers are reused.
  std::map<std::string, Tensor> gradients() const {
    std::map<std::string, Tensor> out;
    for (const auto& p : parameters.all())
      if (p->gradient && p->gradient_written) out[p->name] = p->gradient.clone();
    return out;
  }
};

inline const std::vector<int32_t> kIds = {1, 5, 9, 2, 2, 10};

}  // namespace chassis::test
