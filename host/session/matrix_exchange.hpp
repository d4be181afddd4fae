// Moves a matrix that the layout pass divided along an axis between the ranks that have its parts and the one that
// steps it. Each of them may step one matrix meanwhile.
#pragma once

#include <string>
#include <vector>

#include "host/program/parameters.hpp"
#include "host/service/comm.hpp"
#include "host/service/tensor.hpp"
#include "host/state/layout.hpp"

namespace chassis {

// The axis along which the layout pass divided the parameter; empty if it did not, or along several.
std::string dividing_axis(const Parameter& parameter);
// The descriptor of the parameter if one coordinate along that axis has all of it.
Descriptor undivided(const Parameter& parameter, int coordinate);

class MatrixExchange {
 public:
  // After the shards were allocated. Matrix i is stepped by rank i of the group. All ranks of the group store their
  // parts of every one.
  MatrixExchange(Communicator& communicator, CommGroup& group, Device device, std::vector<Parameter*> matrices);

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
  CommGroup& group_;
  const Device device_;  // where the group communicates
  const std::vector<Parameter*> matrices_;
  const Parameter* own_ = nullptr;                 // of matrices_, that of this rank; NULL if it has none
  std::vector<uint64_t> stored_;                   // elements of each matrix that this rank stores
  std::vector<uint64_t> parts_of_own_;             // elements of own_, by rank of the group
  std::vector<std::vector<Piece>> pieces_of_own_;  // the same with their places
};

}  // namespace chassis
