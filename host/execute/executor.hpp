// Runs the resolved program: forward in order, backward in reverse with each node's own backward. Parameters are looked
// up when they are used, so that strategies can gather and free them around the units.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/compile/compile.hpp"
#include "host/compile/pipeline.hpp"
#include "host/execute/backend.hpp"
#include "host/execute/kv_cache.hpp"
#include "host/execute/router_loads.hpp"
#include "host/execute/run_context.hpp"
#include "host/state/schedule.hpp"
#include "host/state/stage_division.hpp"

namespace chassis {

// [step] The events that strategies receive, in order, exactly once for each run of a unit (one block of one chain).
class UnitEvents {
 public:
  virtual ~UnitEvents() = default;
  struct Flags {
    bool training = true;          // a backward will follow, or this is one
    bool recompute = false;        // a full forward that runs again for its backward
    bool last_microbatch = false;  // backward only: the unit's gradients of the step are complete after it
    int microbatch = 0;
    // Backward only: whether it computes the gradients of inputs and of params. A split backward runs once for each.
    bool inputs = true;
    bool params = true;
  };
  virtual void pre_forward(size_t unit, Flags flags) = 0;
  virtual void post_forward(size_t unit, Flags flags) = 0;
  virtual void pre_backward(size_t unit, Flags flags) = 0;
  // If flags.params: the gradient buffers hold all that this unit adds to them in this micro-batch.
  virtual void post_backward(size_t unit, Flags flags) = 0;
};

// The values between two units, by name.
using StreamValues = std::map<std::string, Tensor>;

// A value between two units, as a rank has it in one micro-batch.
struct StreamSpec {
  std::string name;
  std::vector<int64_t> sizes;
  Dtype dtype = Dtype::f32;
};

// [step] Hands values and their gradients from a stage of the pipeline to the next one, and back.
class StageLinks {
 public:
  virtual ~StageLinks() = default;
  // Does not wait until the values have arrived. Values from one rank to another arrive in the order of sending.
  virtual void send(int from_stage, int to_stage, StreamValues values) = 0;
  virtual StreamValues receive(int from_stage, int to_stage, const std::vector<StreamSpec>& specs, Device device) = 0;
  // Returns the last stage's tensor on the ranks of all stages; `own` is empty on ranks without the last stage.
  virtual Tensor share_last(Tensor own, const StreamSpec& spec, Device device) = 0;
};

// The stages of a pipeline that one rank runs.
struct RankStages {
  std::vector<int> stages;       // by chunk
  std::vector<UnitRange> units;  // likewise
  int num_stages = 1;            // of all ranks
};
// Those of the rank with that coordinate on the pipeline's axis.
RankStages stages_of(const Pipeline& pipeline, int coordinate);

// The objects that an executor uses in addition to the program. They must outlive it.
struct ExecutorParts {
  std::shared_ptr<const Backend> backend = {};  // NULL: kernels on the device for which the program was compiled
  UnitEvents* events = nullptr;                 // NULL: no strategy takes part
  Collectives* collectives = nullptr;           // NULL only if the program has none
  std::optional<RankStages> stages = {};        // absent: one stage has all units
  StageLinks* links = nullptr;                  // NULL if this rank has all stages
  Trace* trace = nullptr;                       // NULL: no trace
  // For reports of a failure: a backward that fails keeps its tensors for visit_saved().
  bool keeps_failed = false;
};

class Executor {
 public:
  explicit Executor(CompiledProgram compiled, ExecutorParts parts = {});
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // [step] Runs one micro-batch forward and keeps what its backward needs. Returns the summed loss, a scalar on the
  // device. Backward computes the gradients of loss_scale · loss.
  Tensor forward(int microbatch, const Fields& fields, double loss_scale, RandomBits random = {});
  // [step] Adds that micro-batch's gradients to the parameters' buffers and forgets it. `last`: the step's last one.
  void backward(int microbatch, bool last = true);

  // [step] The same for some units: takes the outputs of the unit before them and returns those of their last unit. The
  // program's last unit returns "loss".
  StreamValues forward(int microbatch, UnitRange units, const Fields& fields, StreamValues inputs, double loss_scale,
                       RandomBits random = {});
  // Takes the gradients of the units' outputs and returns those of their inputs.
  StreamValues backward(int microbatch, UnitRange units, StreamValues output_gradients, bool last = true);
  // [step] backward() in two parts, bit for bit if backward_params() of all micro-batches run in the order of their
  // backward_inputs(). The first returns the gradients of the units' inputs and keeps what the second needs, including
  // the gradients passed in, so their memory must not be written to until then. Nodes that cannot split their backward
  // add to the parameters' buffers earlier: COMPOSED ones in the first part, FORWARD_BACKWARD ones in forward.
  StreamValues backward_inputs(int microbatch, UnitRange units, StreamValues output_gradients);
  void backward_params(int microbatch, UnitRange units, bool last = true);
  UnitRange all_units() const { return {0, compiled_.program().num_units()}; }

  // [step] One entry of the rank's schedule: takes what the previous stage has sent, and sends what the next one needs.
  // A forward returns the outputs of the program if its stage is the last one; otherwise nothing. `last`: the chunk's
  // last backward in the step.
  StreamValues forward_stage(const Work& work, const Fields& fields, double loss_scale, RandomBits random);
  // Gives the gradients of outputs other than "loss", before the backward of the last stage. Only ranks that have it
  // may call this.
  void set_output_gradients(int microbatch, StreamValues gradients);
  void backward_stage(const Work& work, bool last);
  // [step] The outputs of a micro-batch, without gradients, for kLoss or kReference; nothing on ranks without the last
  // stage. Micro-batches run one after another may overlap in a pipeline.
  StreamValues outputs(Purpose purpose, const Fields& fields);
  // [step] The summed loss of a micro-batch, without gradients; empty on ranks without the last stage.
  Tensor loss(const Fields& fields);
  // Names a plugin's op that needs all positions of a row, so that logits() cannot have a cache, such as "trial/mix
  // 'mix' of block 'layer'". Empty if there is none.
  std::string refusal_of_cache() const;
  // [step] Logits [B, T or 1, vocab] for generation, on all ranks. With caches, one for each row, `fields` holds only
  // the new positions, as many in every row.
  Tensor logits(const Fields& fields, KeyValueCaches caches, bool last_position_only);

  const Program& program() const { return compiled_.program(); }
  const ResolvedProgram& resolved(Purpose purpose) const { return compiled_.resolved(purpose); }
  // [step] What the routers of this rank's units have chosen in training since the last call. Sums over all ranks count
  // each position once.
  std::vector<RouterLoad> take_router_loads();
  // For reports of a failure: visits the tensors that a backward would read, each with the name of its value, or of the
  // node whose kernel saved it; forget() drops them.
  using SavedTensorVisitor =
      std::function<void(int microbatch, size_t unit, const std::string& name, bool by_kernel, const Tensor& tensor)>;
  void visit_saved(const SavedTensorVisitor& visit) const;
  void forget();

 private:
  struct Microbatch {
    int number = 0;
    Fields fields;
    DimSizes sizes;
    double loss_scale = 1.0;
    RandomBits random = {};
    struct Kept {
      std::unique_ptr<Frame> frame;
      // Set if the full forward runs again: its inputs, and the choices that it takes.
      std::map<std::string, Tensor> inputs;
      std::map<size_t, Tensor> choices;
    };
    size_t first_unit = 0;
    std::vector<Kept> kept;      // by unit, from first_unit on
    bool awaits_params = false;  // backward_inputs() has run

    Kept& of(size_t unit) { return kept[unit - first_unit]; }
  };

  // The values that pass from the previous unit into this one; empty for the first unit.
  std::vector<StreamSpec> stream_into(Purpose purpose, size_t unit, const DimSizes& sizes) const;
  bool has_stage(int stage) const {
    return std::find(own_.stages.begin(), own_.stages.end(), stage) != own_.stages.end();
  }
  StreamValues take(std::map<std::pair<int, int>, StreamValues>& waiting, int from_stage, int to_stage, int microbatch,
                    const std::vector<StreamSpec>& specs);
  void hand_on(std::map<std::pair<int, int>, StreamValues>& waiting, int from_stage, int to_stage, int microbatch,
               StreamValues values, const std::vector<StreamSpec>& specs);
  StreamValues forward(int microbatch, UnitRange units, const Fields& fields, DimSizes sizes, StreamValues inputs,
                       double loss_scale, RandomBits random);
  StreamValues infer(Purpose purpose, const Fields& fields, const DimSizes& sizes, KeyValueCaches caches,
                     bool last_position_only);
  Device device() const { return backend_->device(); }

  StreamValues run_units(const ResolvedProgram& resolved, UnitRange units, StreamValues stream, Microbatch& mb,
                         KeyValueCaches caches, bool last_position_only);
  StreamValues run_backward_units(Microbatch& mb, UnitRange units, StreamValues gradients, UnitEvents::Flags flags);
  // The size that the fields of a micro-batch give a dim.
  int64_t size_of(DimId dim, const Fields& fields) const;
  DimSizes sizes_of(const Fields& fields) const;
  RunContext context(size_t unit, const Microbatch& mb, KeyValueCaches caches) const;
  void enter(const char* phase, int microbatch, size_t unit) const;
  std::string_view name_of(size_t unit) const { return trace_ ? std::string_view(unit_names_[unit]) : ""; }

  const CompiledProgram compiled_;
  const std::shared_ptr<const Backend> backend_;
  UnitEvents* const events_;
  Collectives* const collectives_;
  const RankStages own_;
  StageLinks* const links_;
  Trace* const trace_;
  const bool keeps_failed_;
  const std::vector<std::string> unit_names_;                  // for the trace
  std::map<std::pair<int, size_t>, Microbatch> microbatches_;  // by number and first unit
  // Values and gradients for another stage of this rank, by receiving stage and micro-batch.
  std::map<std::pair<int, int>, StreamValues> values_, gradients_;
  RouterLoads router_loads_;
};

}  // namespace chassis
