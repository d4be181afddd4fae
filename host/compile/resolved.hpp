// The resolved program: nodes, blocks and units, each node with the provider that computes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chassis/kind/ops.h"
#include "host/base/error.hpp"
#include "host/compile/recompute_mode.hpp"
#include "host/graph/dim_sizes.hpp"
#include "host/graph/program.hpp"
#include "host/plugin/call.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

class Instance;

// An activated instance of kind ops, under the name the user wrote.
struct OpsProvider {
  std::string name;
  chassis_instance* self = nullptr;
  const chassis_ops_t* table = nullptr;
  bool by_user = false;       // named in the configuration, not a default
  bool is_candidate = false;  // found by "auto": neighbours that compete are asked together, and the cheapest wins
  bool tracked = false;       // gets handles only from the host's tables, so that any other handle is invalid
};
// Named after the member.
OpsProvider ops_provider(const Instance& instance);

enum class Purpose {
  kTraining,   // what the objective reads, and its gradients
  kLoss,       // the same without gradients
  kReference,  // as kLoss, without the ops of adapters
  kLogits,     // generation
};

struct ResolveOptions {
  Purpose purpose = Purpose::kTraining;
  Device device = {};
  Dtype compute = Dtype::f32;
  int64_t batch = 1;  // B and T that claims and memory are planned with
  int64_t time = 1;
  // Bytes of shared memory that one block of threads on the device may use. nullopt: not known, or the CPU.
  std::optional<uint64_t> shared_limit_bytes = std::nullopt;
  bool narrows_cache = true;                                // generation caches fewer numbers where that is possible
  std::vector<OpsProvider> attention = {};                  // asked first for ops of that id
  std::vector<OpsProvider> kernels = {};                    // in the user's priority
  SourcePosition attention_where = {}, kernels_where = {};  // positions of the keys that chose them

  DimSizes planned(const Program& program) const { return DimSizes::largest(program, batch, time); }
};

struct Refusal {
  std::string provider;
  std::string pattern;
  std::string reason;
};

// A provider that claims a node for which several compete.
struct Candidate {
  std::string provider;
  double cost_ns = 0.0;  // from its claim; 0: unknown
};

struct Node {
  std::vector<uint32_t> ops;    // ops of the block, in order
  std::string pattern;          // their ids, joined by '+'
  CommOp comm = CommOp::kNone;  // of a collective
  std::string name;             // "decoder.q_proj"
  std::vector<ValueId> inputs;  // kAbsent where left out
  std::vector<SlotId> params;
  std::vector<ValueId> outputs;

  const OpsProvider* provider = nullptr;  // NULL: a collective
  const CallSite* site = nullptr;         // "provider 'sdpa'" on this node
  std::shared_ptr<void> kernel;
  chassis_infer_t infer{};            // its tiles are NULL
  std::vector<chassis_tile_t> tiles;  // copies of them; infer.tile is an index into these
  double cost_ns = 0.0;
  int num_calls = 1;  // 2: one for each piece of a row (kPieces); infer and claim see one of them
  std::vector<Refusal> refusals;
  std::vector<Candidate> candidates;  // if providers compete: all that claim it, the chosen one first

  bool has_logits = false;  // makes or reads values over the vocabulary
  bool has_backward = false;
  std::vector<uint8_t> input_needs_grad;

  // Set by the liveness pass.
  int overwritten_input = -1;               // output 0 reuses its memory; -1: none
  std::vector<ValueId> dead_after_forward;  // training: values that no backward reads
  std::vector<ValueId> dead_after_backward;
  // Shifts whose first reader is this node: after its backward their gradients are complete, and are sent back.
  std::vector<size_t> shifts_after_backward;

  // Set for blocks that recompute selectively (selective.hpp), and for chunks of values that are kept whole.
  bool is_recomputed = false;         // its forward runs again in backward
  int overwritten_by_recompute = -1;  // the same as overwritten_input, for that run
  std::vector<ValueId> dead_after_recompute;
  std::vector<size_t> recomputed_before_backward;  // nodes that run again before the backward of this one, in order

  // Set by the cache pass, for attention in generation: the cached values if they are not its keys and values, and the
  // nodes that compute those from them, in order.
  std::vector<ValueId> cached;
  std::vector<size_t> computed_from_cache;
  // With a cache the node runs only as one of those nodes.
  bool is_left_to_cache = false;

  bool flag(uint32_t bit) const { return (infer.flags & bit) != 0; }
  bool keeps_input(size_t i) const;
  bool keeps_output(size_t i) const;
  uint64_t saved_bytes() const;  // bytes that its calls of forward save for its backward in addition to values
};

// A block type as one kind of unit runs it. What must be kept depends on which of its slots are trained, and on whether
// its inputs need gradients.
struct ResolvedBlock {
  uint32_t type = 0;
  BlockType block;  // without ops that the purpose does not need
  std::vector<uint8_t> slot_trainable;
  bool inputs_need_grad = false;
  std::vector<uint8_t> value_needs_grad;
  std::vector<std::vector<int64_t>> value_shapes;  // at the planned sizes
  std::vector<Node> nodes;

  // Set by the liveness pass.
  std::vector<ValueId> kept;        // values alive between forward and backward
  uint64_t kept_bytes = 0;          // bytes of those that the block itself makes, at the planned sizes
  uint64_t saved_bytes = 0;         // bytes of further tensors that kernels save
  uint64_t input_bytes = 0;         // bytes that full recompute keeps instead
  uint64_t choice_bytes = 0;        // and further bytes that it keeps: outputs of ops that choose
  uint64_t peak_forward_bytes = 0;  // maximum alive at once inside the block, in forward
  uint64_t workspace_bytes = 0;     // maximum of any node
};

// All units of the program, for one purpose. Units of the same block type that train the same slots share a block.
struct ResolvedProgram {
  Purpose purpose = Purpose::kTraining;
  std::vector<std::shared_ptr<const ResolvedBlock>> units;
  std::vector<BlockRecompute> recompute;                        // by unit, for training; set by the recompute pass
  std::vector<std::shared_ptr<const ResolvedBlock>> selective;  // by unit: as its mode runs it; NULL: unchanged

  const ResolvedBlock& running(size_t unit) const {
    return unit < selective.size() && selective[unit] ? *selective[unit] : *units[unit];
  }
};

}  // namespace chassis
