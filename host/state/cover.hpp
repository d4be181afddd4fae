// Proof that all ranks together own every element of every tensor exactly once, before anything is trained or written.
// Says of the first wrong element where it is, who claims it, and what probably went wrong.
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
    kMissingRankState,   // a gap, and some rank declared nothing of the tensor, or just one shard of n arrived
    kGap,                // a gap although every rank declared something
    kDuplicate,          // two ranks own the same box
    kOverlap,            // two boxes share elements without being the same
    kPadding,            // a box reaches into the run-time padding
    kOutOfBounds,        // a box ends outside of the tensor
    kIllegalCut,         // a box begins or ends within a block
    kDtypeDisagreement,  // ranks, or the model, differ on the dtype
    kShapeDisagreement,  // … on the logical shape
    kPartial,            // terms of a sum that nobody has reduced
    kTie,                // tied to a tensor that is absent, tied itself, or of another shape or dtype
  };

  Cause cause = Cause::kGap;
  std::string fqn;
  Box where;        // the gap, the shared elements, or the part of box_a that is wrong
  int rank_a = -1;  // -1: nobody, or the model
  int rank_b = -1;
  Box box_a, box_b;  // what those ranks declared, if they are set
  std::string message;
};

class Cover {
 public:
  explicit Cover(int world_size);

  // The tensor must exist with this shape and dtype, whether or not any rank declares it.
  void expect(const Descriptor& tensor);
  // What a rank says it owns of a tensor. To hold none of it is a statement too; not to declare it at all is
  // suspicious.
  void declare(const Descriptor& tensor, int rank, std::span<const Box> owned);
  void declare(const Layout& layout, int rank);

  int64_t num_tensors() const { return static_cast<int64_t>(tensors_.size()); }
  int64_t num_claims() const { return num_claims_; }

  // At most one fault per tensor, in the order of first declaration. O(n log n) in the number of claims.
  std::vector<CoverFault> faults(size_t limit = 16) const;
  // Throws an Error with the first fault, and the number of the others.
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
  std::optional<CoverFault> tie_fault(const Tensor& tensor) const;
  std::optional<CoverFault> bounds_fault(const Tensor& tensor, const Claim& claim) const;
  std::optional<CoverFault> cut_fault(const Tensor& tensor, int64_t block) const;
  CoverFault overlap_fault(const Tensor& tensor, const Shape& element) const;
  CoverFault gap_fault(const Tensor& tensor, const Shape& element) const;

  int world_size_;
  int64_t num_claims_ = 0;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

// Every rank of every layout, as in a run that is about to start. Throws as Cover::prove does.
void prove_cover(std::span<const Layout> layouts);

}  // namespace chassis
