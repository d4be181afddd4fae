// Walks the resolved program: forward in order, backward in reverse by each op's own backward. Parameters are looked up
// at the moment of use, so that strategies may gather and free them around the units.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/program/block_run.hpp"
#include "host/program/kv_cache.hpp"
#include "host/program/layout.hpp"
#include "host/program/parameters.hpp"
#include "host/program/program.hpp"
#include "host/program/recompute.hpp"
#include "host/program/resolve.hpp"

namespace chassis {

// [step] What strategies hear, in order, exactly once for each run of a unit. A unit is one block of one chain.
class UnitEvents {
 public:
  virtual ~UnitEvents() = default;
  struct Flags {
    bool training = true;          // a backward will come, or this is one
    bool recompute = false;        // a whole forward that is run again for its backward
    bool last_microbatch = false;  // backward alone: the step's gradients end here
  };
  virtual void pre_forward(size_t unit, Flags flags) = 0;
  virtual void post_forward(size_t unit, Flags flags) = 0;
  virtual void pre_backward(size_t unit, Flags flags) = 0;
  // All that this unit adds to gradients in this micro-batch is in their buffers.
  virtual void post_backward(size_t unit, Flags flags) = 0;
};

class Executor {
 public:
  // All must outlive it. `events` and `collectives` may be NULL; a program with collectives needs the latter.
  Executor(const Program& program, const ProgramLayout& layout, ParameterTable& parameters, ResolveOptions options,
           Recompute recompute, UnitEvents* events = nullptr, Collectives* collectives = nullptr);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // [step] Runs one micro-batch forward and keeps what its backward needs. Returns the summed loss, a scalar on the
  // device. Gradients will be those of loss_scale · loss.
  Tensor forward(int microbatch, const Fields& fields, double loss_scale);
  // [step] Adds the gradients of that micro-batch to the parameters' buffers and forgets it. `last` of the step's.
  void backward(int microbatch, bool last = true);

  // [step] The summed loss of a micro-batch, without gradients.
  Tensor loss(const Fields& fields);
  // [step] Logits [B, T or 1, vocab] for generation. With a cache, `fields` holds the new positions alone.
  Tensor logits(const Fields& fields, KeyValueCache* cache, bool last_position_only);

  const ResolvedProgram& resolved(Purpose purpose);
  Recompute recompute() const { return recompute_; }
  void set_recompute(Recompute recompute) { recompute_ = recompute; }
  // Blocks of the longest repeated chain; 0 if no chain repeats anything.
  int64_t max_recomputed_blocks() const;
  void set_events(UnitEvents* events) { events_ = events; }
  // From now on tensors lie on that meta device and kernels are not called: a step shows what it would take.
  void rehearse_on(Device meta) { rehearsal_ = meta; }

  // By `infer`, at the planned sizes: bytes alive at the peak of a training micro-batch, without parameters, gradients
  // and optimizer states.
  uint64_t planned_activation_bytes(Recompute recompute);

 private:
  struct Microbatch {
    Fields fields;
    double loss_scale = 1.0;
    std::vector<std::unique_ptr<Frame>> frames;  // by unit
    std::vector<std::map<std::string, Tensor>> inputs;  // by unit, where its whole forward runs again
  };

  std::map<std::string, Tensor> run_units(const ResolvedProgram& resolved, Microbatch& mb, KeyValueCache* cache,
                                          bool last_position_only);
  RunContext context(size_t unit, const Microbatch& mb, KeyValueCache* cache) const;
  BlockRecompute recompute_of(const Recompute& recompute, size_t unit) const {
    return place_in_chain_[unit] ? recompute.at(*place_in_chain_[unit]) : BlockRecompute::kNone;
  }
  const ResolvedBlock& selective(const ResolvedBlock& block);

  const Program& program_;
  const ProgramLayout& layout_;
  ParameterTable& parameters_;
  ResolveOptions options_;
  Recompute recompute_;
  UnitEvents* events_;
  Collectives* collectives_;
  std::optional<Device> rehearsal_;
  std::vector<std::optional<int64_t>> place_in_chain_;  // by unit; none in a chain of one block
  std::map<Purpose, ResolvedProgram> resolved_;
  std::map<const ResolvedBlock*, ResolvedBlock> selective_;  // by the block that keeps all
  bool counted_idle_ = false;
  std::map<int, Microbatch> microbatches_;
};

}  // namespace chassis
