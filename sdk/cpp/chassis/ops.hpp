// The base of ops plugins: they claim nodes of the program, say what these need, and compute them.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "chassis/call.hpp"
#include "chassis/member.hpp"
#include "chassis/node.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

// The resources that running a node needs; see chassis_infer_t for the meaning of each field.
class Infer {
 public:
  explicit Infer(chassis_infer_t& raw) : raw_(raw) {}

  chassis_infer_t& raw() noexcept { return raw_; }
  Infer& flags(uint32_t flags) { return raw_.flags |= flags, *this; }
  // Backward reads these.
  Infer& keeps_input(uint32_t i) { return raw_.keeps_inputs |= bit(i), *this; }
  Infer& keeps_output(uint32_t i) { return raw_.keeps_outputs |= bit(i), *this; }
  // One more tensor from forward to backward; the first is saved(0).
  Infer& saves(uint32_t dtype, std::span<const int64_t> sizes) {
    if (raw_.num_saved == std::size(raw_.saved)) throw Failure(CHASSIS_INTERNAL, "more than 4 saved tensors");
    chassis_saved_t& saved = raw_.saved[raw_.num_saved++];
    if (sizes.size() > std::size(saved.sizes))
      throw Failure(CHASSIS_INTERNAL, "a saved tensor of ", sizes.size(), " dims, expected at most ",
                    std::size(saved.sizes));
    saved.dtype = dtype;
    saved.num_dims = static_cast<uint32_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), saved.sizes);
    return *this;
  }
  Infer& saves(uint32_t dtype, std::initializer_list<int64_t> sizes) {
    return saves(dtype, std::span(sizes.begin(), sizes.size()));
  }
  Infer& workspace(uint64_t forward_bytes, uint64_t backward_bytes) {
    raw_.workspace_forward_bytes = forward_bytes;
    raw_.workspace_backward_bytes = backward_bytes;
    return *this;
  }
  Infer& overwrites_input(uint32_t i) { return raw_.overwrites_inputs |= bit(i), *this; }
  // The tiles that the provider has for the node, which are copied, and the index of the one that the kernel will use.
  Infer& tiles(std::span<const chassis_tile_t> tiles, size_t used) {
    if (used >= tiles.size()) throw Failure(CHASSIS_INTERNAL, "tile ", used, " of ", tiles.size());
    tiles_.assign(tiles.begin(), tiles.end());
    raw_.tiles = tiles_.data();
    raw_.num_tiles = static_cast<uint32_t>(tiles_.size());
    raw_.tile = static_cast<uint32_t>(used);
    return *this;
  }
  Infer& tiles(std::initializer_list<chassis_tile_t> tiles, size_t used) {
    return this->tiles(std::span(tiles.begin(), tiles.size()), used);
  }

 private:
  friend class Ops;
  static uint32_t bit(uint32_t i) {
    if (i >= 32) throw Failure(CHASSIS_INTERNAL, "operand ", i, ", expected at most 31");
    return 1u << i;
  }
  chassis_infer_t& raw_;
  std::vector<chassis_tile_t> tiles_;
};

// The planned sizes of an operand, which in a call has the sizes of another one in the dims that both share.
class PlannedSizes {
 public:
  PlannedSizes(const OperandView& of, const OperandView& like)
      : sizes_(of.local_shape().begin(), of.local_shape().end()), num_shared_(num_shared_dims(of, like)) {}
  std::vector<int64_t> in_call(const BorrowedTensor& like) const {
    std::vector<int64_t> sizes = sizes_;
    std::copy_n(like.sizes().begin(), num_shared_, sizes.begin());
    return sizes;
  }

 private:
  std::vector<int64_t> sizes_;
  int num_shared_;
};

// Computes one node. All [step]; forward may be called again for recompute and must give the same bits.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void forward(Call& call) = 0;
  virtual void backward_inputs(Call&) { throw Failure(CHASSIS_INTERNAL, "this kernel has no backward_inputs"); }
  virtual void backward_params(Call&) { throw Failure(CHASSIS_INTERNAL, "this kernel has no backward_params"); }
  virtual void forward_backward(Call&) { throw Failure(CHASSIS_INTERNAL, "this kernel has no forward_backward"); }
};

// The patterns of a provider whose sources have tables, each returned by a function. Rows have a member `pattern`.
template <typename Rows, size_t N>
std::vector<std::string_view> patterns_of(Rows (*const (&sources)[N])()) {
  std::vector<std::string_view> out;
  for (const auto source : sources)
    for (const auto& row : source()) out.push_back(row.pattern);
  return out;
}

// A provider also defines the patterns of the nodes that it is asked about, as an array or by a function:
//   static constexpr std::string_view kPatterns[] = {"attention"};
//   static std::vector<std::string_view> patterns();
class Ops : public Member {
 public:
  static constexpr std::string_view kKind = "ops";
  using Member::Member;

  // [control] Returns an estimate in nanoseconds (0: unknown); chassis/cost.hpp has some. refuse("reason") leaves the
  // node to the next provider. Must call refuse_attrs_other_than on every op that has attributes; else the claim fails.
  virtual double claim(const NodeView& node) = 0;
  // [control] Pure.
  virtual void infer(const NodeView& node, Infer& out) = 0;
  // [control] The node is borrowed for the call.
  virtual std::unique_ptr<Kernel> create_kernel(const NodeView& node) = 0;

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static const std::vector<chassis_str_t> patterns = pattern_strs<T>();
    static const chassis_ops_t kTable = {sizeof(chassis_ops_t),
                                         static_cast<uint32_t>(patterns.size()),
                                         patterns.data(),
                                         &claim_entry,
                                         &infer_entry,
                                         &create_kernel_entry,
                                         &destroy_kernel_entry,
                                         &run_entry<&Kernel::forward>,
                                         &run_entry<&Kernel::backward_inputs>,
                                         &run_entry<&Kernel::backward_params>,
                                         &run_entry<&Kernel::forward_backward>};
    return id == CHASSIS_OPS_ID ? &kTable : nullptr;
  }

 private:
  template <typename T>
  static std::vector<chassis_str_t> pattern_strs() {
    std::vector<chassis_str_t> out;
    if constexpr (requires { T::patterns(); }) {
      for (const std::string_view pattern : T::patterns()) out.push_back(str(pattern));
    } else {
      for (const std::string_view pattern : T::kPatterns) out.push_back(str(pattern));
    }
    return out;
  }

  struct Running {
    std::unique_ptr<Kernel> kernel;
    CallCounts counts;
  };

  static chassis_status_t* claim_entry(chassis_instance* self, const chassis_node_t* node, double* cost) noexcept {
    Ops& ops = member_of<Ops>(self);
    return guard(ops.host().table(), [&] {
      const NodeView view(node);
      *cost = ops.claim(view);
      if (const std::string op = view.unchecked_op(); !op.empty())
        throw Failure(CHASSIS_INTERNAL, "claim accepts ", op,
                      " without refuse_attrs_other_than, so that attributes that it does not know would be ignored");
    });
  }
  static chassis_status_t* infer_entry(chassis_instance* self, const chassis_node_t* node,
                                       chassis_infer_t* out) noexcept {
    Ops& ops = member_of<Ops>(self);
    return guard(ops.host().table(), [&] {
      chassis_infer_t inferred = read_sized(out);
      Infer infer(inferred);
      ops.infer(NodeView(node), infer);
      ops.tiles_.swap(infer.tiles_);  // inferred.tiles stays valid
      write_sized(inferred, out);
    });
  }
  static chassis_status_t* create_kernel_entry(chassis_instance* self, const chassis_node_t* node,
                                               void** kernel) noexcept {
    Ops& ops = member_of<Ops>(self);
    return guard(ops.host().table(), [&] {
      const NodeView view(node);
      chassis_infer_t inferred{};
      Infer infer(inferred);
      ops.infer(view, infer);
      const CallCounts counts{view.raw().num_inputs, view.raw().num_params, view.raw().num_outputs, inferred.num_saved};
      auto running = std::make_unique<Running>(Running{ops.create_kernel(view), counts});
      *kernel = running.release();
    });
  }
  static void destroy_kernel_entry(chassis_instance*, void* kernel) noexcept { delete static_cast<Running*>(kernel); }

  template <void (Kernel::*Function)(Call&)>
  static chassis_status_t* run_entry(chassis_instance* self, void* kernel, chassis_call_t* raw) noexcept {
    const Host& host = member_of<Ops>(self).host();
    return guard(host.table(), [&] {
      Running& running = *static_cast<Running*>(kernel);
      Call call(host, raw, running.counts);
      (running.kernel.get()->*Function)(call);
      call.commit();
    });
  }

  std::vector<chassis_tile_t> tiles_;  // of the last infer; the host reads them when it returns
};

CHASSIS_SDK_END
