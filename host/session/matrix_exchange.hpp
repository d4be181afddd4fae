// Moves a matrix that the layout pass divided along an axis between the ranks that have its parts and the rank that
// steps it. Each of these ranks may step one matrix at the same time.
#pragma once

#include <string>
#include <vector>

#include "host/compile/parameters.hpp"
#include "host/service/comm.hpp"
#include "host/service/tensor.hpp"
#include "host/state/layout.hpp"

namespace chassis {

// The axis along which the layout pass divided the parameter; empty if it did not, or along several.
std::string dividing_axis(const Parameter& parameter);
// The descriptor that the parameter would have if one coordinate along that axis had all of it.
Descriptor undivided(const Parameter& parameter, int coordinate);

class MatrixExchange {
 public:
  // Call it after the shards are allocated. Rank i of the group steps matrix i. Each rank of the group stores a part of
  // every matrix.
  MatrixExchange(Communicator& communicator, ProcessGroup& group, Device device, std::vector<Parameter*> matrices);

  // [step][all-ranks] of the group. The tensors of this rank's matrix, of its global shape and on the device of its
  // shard; empty if it has none.
  struct Whole {
    Tensor param, grad;
  };
  Whole collect() const;
  // [step][all-ranks] of the group. Writes `param`, which collect() returned, into the shards of all.
  void spread(const Tensor& param) const;

 private:
  Tensor exchange(const Tensor& send, std::vector<uint64_t> counts, std::vector<uint64_t> recv_counts) const;

  Communicator& communicator_;
  ProcessGroup& group_;
  const Device device_;  // the device that the group communicates on
  const std::vector<Parameter*> matrices_;
  const Parameter* own_ = nullptr;                 // the matrix of this rank, in matrices_; NULL if it has none
  std::vector<uint64_t> stored_;                   // elements of each matrix that this rank stores
  std::vector<uint64_t> parts_of_own_;             // elements of own_, by rank of the group
  std::vector<std::vector<Piece>> pieces_of_own_;  // these parts with their places
};

}  // namespace chassis
