// The positions of one rank in a value that has all of them, as comm.chunk and comm.put read and write them.
#pragma once

#include <cstdint>

#include "host/service/tensor.hpp"

namespace chassis {

// Chunk `part` of the dim, with `length` positions. The last chunks may have fewer, or none.
struct Chunk {
  int dim = 0;
  int64_t part = 0, length = 0;
};

// May share memory with the whole. Positions after the end of the whole are zero.
Tensor read_chunk(const Tensor& whole, const Chunk& chunk);
void write_chunk(const Tensor& whole, const Chunk& chunk, const Tensor& values);
void add_to_chunk(const Tensor& whole, const Chunk& chunk, const Tensor& values);

}  // namespace chassis
