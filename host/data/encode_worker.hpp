// Makes documents from rows: parses a row, decides whether it is in the set's part, and encodes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "host/data/data_config.hpp"
#include "host/data/document_pipeline.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// `data` says how records become documents; NULL: by the defaults. The arguments must outlive the worker.
std::unique_ptr<RowWorker> make_encode_worker(const DataSetConfig& config, const DataConfig* data,
                                              const Tokenizer* tokenizer, int64_t vocab_size);
// Changes whenever a record would become another document.
std::string encoder_fingerprint(const DataSetConfig& config, const DataConfig* data, const Tokenizer* tokenizer);

}  // namespace chassis
