// The part of a row's queries and keys that a call has (query_part and key_part in chassis/op.h).
#pragma once

#include "mask.hpp"

namespace sdpa {

struct Part {
  int64_t batch = 0, queries = 0, heads = 0, keys = 0, key_heads = 0;  // sizes of the call's tensors
  int64_t query_offset = 0, key_offset = 0;                            // positions of the first ones
  // The numbers of leading queries and keys that are not padding; keys that no query sees are left out.
  int64_t num_queries = 0, num_keys = 0;

  // Throws INVALID_ARGUMENT if there are not as many document ids as positions.
  Part(const Call& call, const MaskSpec& spec);

  bool has_pairs() const { return num_queries > 0 && num_keys > 0; }
  // True if some queries see no key, so that no tile writes their results.
  bool has_hidden() const { return num_queries < queries || num_keys == 0; }
};

}  // namespace sdpa
