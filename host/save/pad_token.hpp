// The padding token of a model with a head of scores. transformers reads the score of a row at its last token that is
// not pad_token_id, so that token must never end a sequence: a pad that is also the end of a turn moves the score to
// the token before it, without an error.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/config/settings.hpp"
#include "host/data/tokenizer.hpp"
#include "host/save/chat_files.hpp"

namespace chassis {

// The ids of a short conversation in the run's chat template; without a template, of a text with EOS.
std::vector<int32_t> sample_sequence(const Settings& settings, const Tokenizer& tokenizer);
// Ids that end sequences of a run: EOS, the stop tokens of the chat template, and the last id of `sample`.
std::vector<int32_t> final_ids(const Settings& settings, const Tokenizer& tokenizer,
                               const std::vector<int32_t>& sample);

struct PadToken {
  int32_t id = -1;
  std::string text;
  bool is_new = false;  // the tokenizer names no pad token, and this one was chosen
};
// The tokenizer's own or, if it names none, `of_model` (-1: none), or else the first special token by this rule: one
// that is called pad; one that is reserved; unk. All ids are below `vocab_size`. Throws a config error without a
// position if the tokenizer's own is one of `finals`, and if no token is left.
PadToken choose_pad_token(const Tokenizer& tokenizer, const std::vector<int32_t>& finals, int64_t vocab_size,
                          int64_t of_model);

// The position at which ...ForSequenceClassification of transformers 5 reads the score of a row, from its ids alone.
// `pad_id`: pad_token_id of config.json; -1: null.
int64_t score_position(std::span<const int32_t> ids, int64_t pad_id);
// Throws a config error unless that is the last token of the sequence, with padding on either side and without.
void require_score_at_end(const std::vector<int32_t>& sequence, int64_t pad_id);

// The same for a row that the run was trained on, with the pad_token_id that the model directory `path` has after an
// export. An adapter's directory has none: its base's config.json counts. `row`: of the row, for the message.
void require_score_at_end_in(const std::string& path, const std::vector<int32_t>& sequence, const SourcePosition& row);

// Names a new pad token in the tokenizer files of an export or a checkpoint.
void write_pad_token(const PadToken& pad, const std::string& tokenizer_directory, ChatFiles& files);

}  // namespace chassis
