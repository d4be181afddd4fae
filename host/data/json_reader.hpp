// Reads .jsonl files: one JSON object per line, with a text or with token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "host/data/document_reader.hpp"
#include "host/data/text_reader.hpp"

namespace chassis {

// Rows {"text": "…"}.
std::unique_ptr<DocumentReader> open_text_rows(const std::string& path, TextEncoder encoder);
// Rows {"input_ids": […], "labels": […]}. Labels are optional, one per id, not shifted; -100 masks. An attention_mask
// is accepted if it masks nothing.
std::unique_ptr<DocumentReader> open_token_rows(const std::string& path, int64_t vocab_size);

}  // namespace chassis
