// Token ids in binary files, little-endian.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "host/base/file.hpp"

namespace chassis {

struct TokenType {
  uint64_t num_bytes = 0;
  bool is_signed = false;
};

// The type of an .idx file; nullopt if it is not an integer type.
std::optional<TokenType> token_type_of_megatron(int code);

template <class T>
T read_number(const char* bytes) {
  T number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

// Appends ids at `offset` of the file as i32. Throws a config error if one does not fit.
void append_ids(std::string& out, const File& file, uint64_t offset, uint64_t num_ids, TokenType type);

}  // namespace chassis
