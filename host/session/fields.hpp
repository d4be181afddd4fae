// The fields and the vocabulary that a program needs from the data, and their conversion to tensors on the device.
#pragma once

#include <string>
#include <vector>

#include "host/config/config.hpp"
#include "host/data/batch.hpp"
#include "host/execute/run_context.hpp"

namespace chassis {

// Throws a plugin error that names the first field of the program that batches do not have, or have with another type
// or shape.
void check_fields(const Program& program);
std::vector<std::string> field_names(const Program& program);
// The size of the program's dimension "vocab"; 0 if it has none.
int64_t vocab_size(const Program& program);

// The sizes of all dims of the program, bounded ones at their maximum.
NamedSizes largest_sizes(const Program& program, int64_t num_rows, int64_t seq_len);

Tensor to_tensor(const HostField& field, Device device);
Fields to_fields(const Batch& batch, Device device);
// The bytes of the rows that the data of a step keep in host memory on one rank; twice as many with data.prefetch,
// which keeps the next step's rows too.
uint64_t step_data_bytes(const Program& program, const Settings& settings, const BatchSizes& sizes);
// The fields of a micro-batch of `num_rows` rows, with undefined contents.
Fields empty_fields(const Program& program, int64_t num_rows, int64_t seq_len, Device device);

}  // namespace chassis
