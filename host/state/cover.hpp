// Proves that all ranks together own every element of every tensor exactly once, before anything is trained or written.
// A fault names the first wrong element, the ranks that claim it, and the probable cause.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "host/state/layout.hpp"

namespace chassis {

struct CoverFault {
  enum class Cause {
    kMissingRankState,   // a gap, and a rank declared nothing of the tensor, or only one shard of n was declared
    kGap,                // a gap although every rank declared something
    kDuplicate,          // two ranks own the same box
    kOverlap,            // two different boxes share elements
    kPadding,            // a box reaches into the run-time padding
    kOutOfBounds,        // a box reaches outside the tensor
    kIllegalCut,         // a box begins or ends within a block
    kDtypeDisagreement,  // ranks, or the model, differ on the dtype
    kShapeDisagreement,  // ranks, or the model, differ on the logical shape
  };

  Cause cause = Cause::kGap;
  std::string fqn;
  Box where;        // the gap, the shared elements, or the part of box_a that is wrong
  int rank_a = -1;  // -1 for none, and for the model
  int rank_b = -1;
  Box box_a, box_b;  // the boxes that those ranks declared, if there are any
  std::string message;
};

class Cover {
 public:
  explicit Cover(int world_size);

  // The tensor must exist with this shape and dtype, whether or not any rank declares it.
  void expect(const Descriptor& tensor);
  // Adds what a rank owns of a tensor. A rank that owns nothing should declare that too; one that declares nothing is
  // named if there is a gap.
  void declare(const Descriptor& tensor, int rank, std::span<const Box> owned);
  void declare(const Layout& layout, int rank);

  int64_t num_tensors() const { return static_cast<int64_t>(tensors_.size()); }
  int64_t num_claims() const { return num_claims_; }

  // At most one fault per tensor, in the order of first declaration. Takes O(n log n) for n claims.
  std::vector<CoverFault> faults(size_t limit = 16) const;
  // Throws a plugin error with the first fault and the number of the others.
  void prove() const;

 private:
  struct Claim {
    int rank;
    Box box;
  };
  struct Tensor {
    Descriptor descriptor;
    int declared_by = -1;
    std::vector<bool> declared;  // by rank
    std::vector<Claim> claims;
    std::optional<CoverFault> early_fault;
  };
  struct Scratch {
    std::vector<uint64_t> rises, falls, spare;
  };

  Tensor& find_or_add(const Descriptor& tensor, int rank);
  std::optional<CoverFault> fault(const Tensor& tensor, Scratch& scratch) const;
  std::optional<CoverFault> bounds_fault(const Tensor& tensor, const Claim& claim) const;
  std::optional<CoverFault> cut_fault(const Tensor& tensor, int64_t block) const;
  CoverFault overlap_fault(const Tensor& tensor, const Shape& element) const;
  CoverFault gap_fault(const Tensor& tensor, const Shape& element) const;

  int world_size_;
  int64_t num_claims_ = 0;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

// Divides the proof: each prover proves every count-th tensor.
struct Prover {
  int index = 0;
  int count = 1;
};

// Cover::prove for all ranks of these tensors, or for this prover's share of the tensors. Keeps the boxes of only one
// tensor at a time, and proves tensors that are divided alike only once.
void prove_cover(std::span<const Descriptor> tensors, const MeshShape& mesh, const Prover& prover = {});
void prove_cover(std::span<const Layout> layouts);

}  // namespace chassis
