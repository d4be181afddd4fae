// Tokenises a data set once, on several threads, and keeps the result, which is reused until something that it depends
// on changes.
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
  uint64_t num_rows;
  uint64_t num_documents;
  uint64_t num_tokens;
};
// Called about once per MiB of input, and at the end; not called if a kept result is used. If it throws, the
// preparation ends and removes its files.
using PrepareCallback = std::function<void(const PrepareProgress&)>;

struct PrepareOptions {
  std::string cache_dir;
  int64_t vocab_size = 0;  // ids must be below it; 0: all are accepted
  PrepareCallback progress = {};
  // Called every few milliseconds while waiting for another process or comparing checksums; may throw like `progress`.
  std::function<void()> poll = {};
  // Compares kept data with its checksums, and counts what was skipped. Only the first process of a machine does so.
  bool first_on_machine = true;
  // How records become documents, the limit of dropped rows, and the number of threads. NULL: the defaults, and no
  // limit.
  const DataConfig* data = nullptr;
};

// Waits while another process prepares the same set in the same cache, and logs that. Throws config errors for invalid
// data: at the line of the file, or at the set's position in the configuration.
TokenStore prepare_data_set(const DataSetConfig& config, const Tokenizer* tokenizer, const PrepareOptions& options);

}  // namespace chassis
