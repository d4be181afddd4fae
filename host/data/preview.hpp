// The first rows of a set's files as text, with the parts that are trained.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/data/data_config.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

enum class TokenState {
  kMasked,
  kTrained,
  kPartlyInside
};  // partly inside: masked, since only a part of it is trained text

struct PreviewPiece {
  TokenState state = TokenState::kMasked;
  std::string text;
  std::vector<int32_t> ids;
  std::vector<std::string> texts;  // one for each id
};

// A trained label that differs from the id at its place.
struct PreviewLabel {
  uint64_t place = 0;  // in the row
  int32_t id = 0, label = 0;
};

// A row, or one of the sequences of a row that an objective reads.
struct PreviewRow {
  std::string file;
  uint64_t line = 0;
  std::string what;         // of a sequence of several, or of a judged one: "chosen", "mismatch", "answer 2 of 8"
  std::string about;        // how the data judge it: "margin 0.5", "class 2 (news)", "reward 1"; empty: they do not
  std::string drop_reason;  // empty: it is used
  uint64_t num_tokens = 0, num_trained_tokens = 0;
  bool is_scored = false;  // its last token is scored, and none is predicted
  std::optional<double> margin;
  std::vector<double> targets;       // a class, values or a reward; NaN: none
  std::vector<PreviewPiece> pieces;  // neighbours differ in their state
  std::vector<PreviewLabel> other_labels;
  bool has_shifted_labels = false;  // the labels are the next ids: the data has shifted them
  // Changes, masks and omissions in this row, and its keys that the format does not use.
  std::map<std::string, uint64_t> changes, unused_keys;
};

struct PreviewLimits {
  uint64_t rows_of_file = 3, files = 5;
};

struct PreviewOfSet {
  uint64_t num_files = 0;                                          // all files of the set
  bool is_sample = false;                                          // rows are left out
  std::map<std::string, uint64_t> changes = {}, unused_keys = {};  // over all rows shown
};

// Calls `show` for each row, or for each of its sequences. Without a tokenizer ids are shown as numbers. Throws config
// errors for invalid rows.
PreviewOfSet preview_rows(const DataSetConfig& set, const DataConfig& data, const Tokenizer* tokenizer,
                          const PreviewLimits& limits, const std::function<void(const PreviewRow&)>& show);

}  // namespace chassis
