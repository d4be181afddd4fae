// A model on this rank: its program, compiled with the adapter and the quantization of a configuration, the tensors of
// its parameters as the strategies divide them, and the executor that runs it. A run has one; so has the frozen copy of
// a reference. One may share the tensors of another that freezes the same parameters.
#pragma once

#include <memory>
#include <optional>

#include "host/compile/compile.hpp"
#include "host/execute/executor.hpp"
#include "host/parallel/stack_events.hpp"
#include "host/parallel/stack_plan.hpp"
#include "host/service/comm.hpp"
#include "host/service/trace.hpp"
#include "host/session/run_adapter.hpp"
#include "host/session/run_mesh.hpp"
#include "host/session/run_model.hpp"
#include "host/session/run_quant.hpp"

namespace chassis {

// How a model's program is run, in addition to what the configuration says. The objects must outlive its last step.
struct Execution {
  Recompute recompute = Recompute::kNone;
  std::optional<Device> rehearsal = {};  // a meta device: the run is rehearsed there (host/execute/backend.hpp)
  UnitEvents* events = nullptr;          // called in place of the strategies, and calls them; NULL: the strategies
  Trace* trace = nullptr;                // NULL: no trace
  bool keeps_failed = false;             // as in ExecutorParts
  bool keeps_shards = false;             // of parameters that are allocated, and filled; as in StackEvents
};

// Members refer to those before them.
struct PlacedModel {
  PlacedModel() = default;
  PlacedModel(PlacedModel&&) noexcept = default;
  PlacedModel& operator=(PlacedModel&&) = delete;

  ParameterTable& parameters() const { return compiled->parameters(); }

  // Opens the plugins of [adapter] and [quant], if the configuration has them. `recorded` outlives the object.
  void open_passes(const Settings& settings, RunPlugins& plugins, const RunModel& recorded);
  // Compiles the recording with the passes of `options`, then with those of the mesh, the adapter and the quantization.
  void compile(const Recording& recording, CompileOptions options);
  // Makes the plan of the strategies, and places the parameters as it says.
  void place(const Config& config);
  // [all-ranks] Allocates the parameters, and the buffers of the strategies, and makes the executor; frees those of an
  // earlier call first. `lender` as in ParameterStorage.
  void allocate(Communicator& communicator, Collectives* collectives, const Execution& execution = {},
                const ParameterTable* lender = nullptr);
  // [all-ranks] The second part of allocate(), for parameters whose tensors are there: makes events and executor.
  void make_executor(Communicator& communicator, Collectives* collectives, const Execution& execution = {});
  // Frees what allocate() made.
  void release();

  std::unique_ptr<RunAdapter> adapter;  // NULL: the configuration has none
  std::unique_ptr<RunQuant> quant;      // likewise
  RunMesh mesh;
  std::optional<CompiledProgram> compiled;
  std::optional<ParameterStorage> storage;  // from the allocation on
  std::unique_ptr<const StackPlan> plan;    // from place() on
  std::unique_ptr<StackEvents> events;      // NULL before the parameters are allocated
  std::unique_ptr<Executor> executor;       // likewise
};

}  // namespace chassis
