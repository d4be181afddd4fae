// Finds out what the first rows of a set would become in a run. Keeps no tokens, and writes nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host/data/data_config.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// Reading stops after the row that reaches one of them.
struct SampleLimits {
  uint64_t rows = 10000, tokens = 500000;
  bool is_encoded = true;  // else rows are only read, and have no tokens
};

struct RowSample {
  uint64_t num_files = 0;
  bool is_part = false;                     // rows are left out
  uint64_t num_rows = 0;                    // including those that are dropped
  std::vector<uint64_t> lengths;            // tokens of each document that is not dropped: all its sequences
  uint64_t num_tokens = 0;                  // sum of these lengths
  std::map<std::string, uint64_t> dropped;  // reason → documents
  std::string first_dropped;                // "file:line"; empty if there is none
  std::map<std::string, uint64_t> changes;  // change or mask → times

  uint64_t num_dropped() const;
  uint64_t longest() const;
  uint64_t num_longer_than(uint64_t num_tokens) const;
};

// Reads all files of the set in their order. Throws what preparing the set throws at an invalid row.
RowSample sample_rows(const DataSetConfig& set, const DataConfig& data, const Tokenizer* tokenizer,
                      const SampleLimits& limits = {});

}  // namespace chassis
