// What a program asks of data: the fields of a batch, the vocabulary; and from plain arrays to tensors on the device.
#pragma once

#include <string>
#include <vector>

#include "host/data/batch.hpp"
#include "host/program/block_run.hpp"

namespace chassis {

// Throws a plugin error that names the first field of the program that no batch has, or not as the program takes it.
void check_fields(const Program& program);
std::vector<std::string> field_names(const Program& program);
// Of the program's dimension "vocab"; 0 if it has none.
int64_t vocab_size(const Program& program);

Fields to_fields(const Batch& batch, Device device);
// The same for so many rows, without a batch: contents are undefined.
Fields unread_fields(const Program& program, int64_t num_rows, int64_t seq_len, Device device);

}  // namespace chassis
