// Turns a record into the ids and labels of a document: BOS and EOS, chat templates, masks, and the limit of length.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/data/chat_coverage.hpp"
#include "host/data/chat_mask.hpp"
#include "host/data/chat_renderer.hpp"
#include "host/data/data_config.hpp"
#include "host/data/document.hpp"
#include "host/data/record.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

struct EncodeOptions {
  ChatConfig chat;
  bool supervised = false;        // else only texts and tokens, whose length does not matter
  bool splits_documents = false;  // by packing: then no document is too long
  Overflow overflow = Overflow::kDrop;
  bool skips_refused = false;  // drops conversations that the template refuses, or does not show
  int64_t seq_len = 0;
  int64_t vocab_size = 0;                       // ids must be below it; 0: all are accepted
  std::optional<SequenceNeeds> sequences = {};  // rows become documents with sequences

  // True if a document that is too long is cut when it is encoded.
  bool cuts_documents() const;
};
EncodeOptions encode_options(const DataConfig& config);

struct EncodeCounts {
  uint64_t num_rows = 0;  // including those that are dropped
  uint64_t num_tokens = 0, num_trained_tokens = 0;
  uint64_t longest = 0;                     // tokens of the longest row, before it was cut or dropped
  uint64_t num_partly_inside = 0;           // tokens masked because they lie partly in what is trained
  uint64_t num_masked_beginnings = 0;       // answers whose first token lies partly in the header
  uint64_t num_masked_completions = 0;      // completions whose first token lies partly in the prompt
  uint64_t num_truncated = 0;               // rows
  uint64_t num_lost_reasoning = 0;          // answers whose reasoning the template leaves out
  uint64_t num_other_begins = 0;            // answers that do not begin after the generation prompt
  uint64_t num_empty_answers = 0;           // answers of which only the end can be trained
  uint64_t num_hidden_names = 0;            // messages whose name the template leaves out
  uint64_t num_null_contents = 0;           // messages with a null that a Jinja template gets as an absent content
  uint64_t num_untrained_first = 0;         // completions without a token in front of them
  uint64_t num_without_end = 0;             // texts that no EOS ends, since the tokenizer has none
  uint64_t num_shifted_labels = 0;          // rows of ids whose labels are the ids that follow
  uint64_t num_other_prompts = 0;           // pairs whose prompts have different tokens
  uint64_t num_open_ends = 0;               // answers of sequences that end in no token that ends generation
  uint64_t num_unused_logps = 0;            // answers with log-probabilities that the objective does not need
  std::map<std::string, uint64_t> spelled;  // special token → how often contents of messages spell it
  std::map<std::string, uint64_t> dropped;  // reason → rows
  // Role → messages. other_roles: messages that are not trained, with roles that the program does not know.
  // hidden_roles: messages whose role the template writes as it writes another one.
  std::map<std::string, uint64_t> other_roles, hidden_roles;
  std::string other_begin;  // says how answers and the generation prompt differ

  // Descriptions of what was changed or masked → how often, for counted warnings.
  std::map<std::string, uint64_t> changes() const;
};

// True if all unmasked labels are the next ids, and not all are also their own ids.
bool are_labels_shifted(std::span<const int32_t> ids, std::span<const int32_t> labels);

// Used by one thread; objects of several threads may share the tokenizer, which outlives them.
class RecordEncoder {
 public:
  // Without a tokenizer only records of tokens can be encoded. Config errors of ChatRenderer are thrown at the first
  // conversation.
  RecordEncoder(const Tokenizer* tokenizer, EncodeOptions options);

  // Fills ids, labels and sequences; an empty text has none. Returns false if the row is dropped, and counts it. Throws
  // config errors at `where`. Documents longer than seq_len are kept unless they are to be cut: packing drops or
  // refuses them. Labelled documents are not cut if the objective needs mismatches, which make them longer, or if a
  // pair became one, whose answers are divided later.
  bool encode(const Record& record, const SourcePosition& where, Document& document);
  // Why the last row was dropped.
  const std::string& drop_reason() const { return drop_reason_; }

  const EncodeCounts& counts() const { return counts_; }
  EncodeCounts take_counts() { return std::exchange(counts_, {}); }
  // Indexes of the tokens of the last row that were masked because they lie partly in what is trained.
  const std::vector<size_t>& partly_inside() const { return partly_inside_; }
  // Changes whenever some record would get other ids or labels for a reason other than the tokenizer.
  std::string fingerprint();

 private:
  void encode_any(const Record& record, Document& document);
  void encode_text(const TextRecord& record, Document& document);
  void encode_segments(const SegmentsRecord& record, Document& document);
  void encode_completion(const CompletionRecord& record, Document& document);
  void encode_chat(const ChatRecord& record, Document& document);
  void encode_shown(const ChatRecord& record, Document& document);

  // In unit_encoder.cpp: rows that an objective reads.
  void require_unit(const Record& record, const SourcePosition& where) const;
  void encode_unit(const Record& record, Document& unit);
  void encode_pair(const PreferenceRecord& record, Document& unit);
  void encode_classified(const ClassifiedRecord& record, Document& unit);
  void encode_rollouts(const RolloutsRecord& record, Document& unit);
  void encode_distilled(const DistilledRecord& record, Document& unit);
  void add_answer(const ChatRecord& chat, SequenceFacts facts, Document& unit);
  void add_tokens(const TokensRecord& tokens, SequenceFacts facts, Document& unit);
  void take_teacher(Document& answer, SequenceFacts& facts, bool ends_in_stop);
  bool take_logps(Document& answer, const SequenceFacts& facts) const;
  bool is_nothing_but_an_end(const Document& document, int32_t& end) const;
  void fit_unit(Document& unit);
  bool reads_whole_texts() const;
  bool learns_to_stop() const;

  std::vector<ByteRange> trained_ranges(const ChatRecord& chat, const RenderedChat& rendered, const Encoding& encoding);
  struct TurnPlaces {
    std::vector<uint64_t> headers;  // where the generation prompt stands in the text
    std::vector<size_t> specials;   // indexes of the special tokens that cover bytes
  };
  TurnPlaces turn_places(const RenderedChat& rendered, const Encoding& encoding) const;
  uint64_t begin_of_answer(const RenderedChat& rendered, const Encoding& encoding, const TurnPlaces& places,
                           const MessageMask& mask) const;
  uint64_t end_of_prompt_inside(const RenderedChat& rendered, const Encoding& encoding,
                                const MessageMask::Piece& piece) const;
  uint64_t end_of_turn(const ChatRecord& chat, const RenderedChat& rendered, const Encoding& encoding,
                       const MessageMask& mask, uint64_t limit) const;
  void require_stop_inside(const Encoding& encoding, const MessageMask& mask) const;
  void require_last_stop(const ChatRecord& chat, const Encoding& encoding) const;
  Error no_stop(size_t message, int32_t id) const;
  void require_all_shown(const ChatRecord& chat, const std::string& text);
  Error not_shown(const ChatRecord& chat, const Omission& omission) const;
  std::string other_templates(const char* what) const;
  void lose_reasoning(size_t message);
  void count_roles(const ChatRecord& chat);
  void require_an_answer(const Document& document) const;
  bool is_skipped(const Record& record, const Error& error) const;
  void count_begin(const RenderedChat& rendered, uint64_t begin);
  void check_reasoning(const ChatRecord& chat, const RenderedChat& rendered, bool knows_spans);
  void count_contents(const ChatRecord& chat, const Encoding& encoding);
  void set_labels(const Encoding& encoding, const std::vector<ByteRange>& trained, Document& document);
  void require_one_bos(const Document& document) const;
  void require_ids_in_vocabulary(const Document& document) const;
  void fit(Document& document);

  const Tokenizer& tokenizer() const;
  ChatRenderer& renderer();
  bool is_special(int32_t id) const;
  bool is_stop(int32_t id) const;
  std::string token_text(int32_t id) const;

  const Tokenizer* tokenizer_;
  EncodeOptions options_;
  std::unique_ptr<ChatRenderer> renderer_;  // created at the first conversation
  std::unique_ptr<ChatCoverage> coverage_;  // only for a Jinja template
  EncodeCounts counts_;
  std::string drop_reason_;
  std::vector<size_t> partly_inside_;
  // In the last row.
  uint64_t num_masked_beginnings_ = 0, num_masked_completions_ = 0, num_other_prompts_ = 0, num_open_ends_ = 0;
  mutable std::vector<int8_t> special_;  // by id; -1: not asked yet
};

}  // namespace chassis
