// Tokenises a data set once and keeps the result; what is kept is used again while nothing it depends on has changed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "host/data/data_config.hpp"
#include "host/data/token_store.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

struct PrepareProgress {
  const std::string& path;
  uint64_t num_bytes_done;
  uint64_t num_bytes;
  uint64_t num_documents;
  uint64_t num_tokens;
};
// Called about once per MiB of input, and at the end; not at all if the set is kept. What it throws ends the
// preparation and leaves nothing behind.
using PrepareCallback = std::function<void(const PrepareProgress&)>;

struct PrepareOptions {
  std::string cache_dir;
  int64_t vocab_size = 0;  // ids must be below; 0: any
  PrepareCallback progress = {};
  // Called every few milliseconds of waiting for others or comparing what is kept; as `progress` it may throw.
  std::function<void()> poll = {};
  // Compares what is kept with its checksums and counts what was passed over. Other processes of a machine leave both
  // to the first.
  bool first_on_machine = true;
};

// Waits while another process prepares the same set in the same place, and says so. Throws config errors for what is
// wrong with the data: at the line of the file, or at the set's place in the configuration.
TokenStore prepare_data_set(const DataSetConfig& config, const Tokenizer* tokenizer, const PrepareOptions& options);

}  // namespace chassis
