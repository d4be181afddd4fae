// Fills rows by each packing. Labels are shifted only here.
#include "host/data/packing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/data_files.hpp"

namespace chassis {
namespace {

// A part of a document and its place in a row.
struct Placement {
  uint64_t offset = 0;  // in the document
  size_t length = 0;
  uint64_t end = 0;  // where the document ends for this row: the token before it has no target
  size_t column = 0;
};

// Returns the number of trained tokens.
uint64_t place_piece(const TokenStore& store, DocumentSpan document, const Placement& at, BatchRow& row,
                     int32_t number) {
  const size_t num_targets = at.offset + at.length < at.end ? at.length : at.length - 1;
  std::vector<int32_t> ids(at.length), targets(at.length, kIgnoreLabel);
  store.read_ids(document.begin + at.offset, ids);
  store.read_labels(document.begin + at.offset + 1, std::span(targets).first(num_targets));
  DocumentColumns columns;
  const bool takes_columns = at.offset == 0 && !store.columns().empty() && row.needs_columns();
  if (takes_columns) columns = store.columns().read(document.index);
  row.write({.ids = ids, .targets = targets, .document = number, .columns = takes_columns ? &columns : nullptr},
            at.column);
  return at.length - static_cast<uint64_t>(std::count(targets.begin(), targets.end(), kIgnoreLabel));
}

// Places a part of a document, or each of its sequences as a piece of its own; only counts trained tokens if `row` is
// NULL. `number` is that of the next piece in the row. Returns the number of trained tokens.
uint64_t place_tokens(const TokenStore& store, const ReferenceStore* reference, DocumentSpan document,
                      const Placement& at, BatchRow* row, int32_t& number) {
  // The first token of a sequence is masked, so this is also right for documents with sequences.
  if (row == nullptr)
    return store.count_trained(document.begin + at.offset + 1,
                               at.offset + at.length < at.end ? at.length : at.length - 1);
  if (!store.has_sequences()) return place_piece(store, document, at, *row, number++);
  CHASSIS_CHECK(at.offset == 0 && at.length == document.length, "a unit is placed as a whole");
  std::vector<SequenceFacts> sequences = store.sequences(document);
  uint64_t num_trained = 0;
  Placement part{.column = at.column};
  for (const SequenceFacts& facts : sequences) {
    part.length = static_cast<size_t>(facts.length);
    part.end = part.offset + part.length;
    num_trained += place_piece(store, document, part, *row, number++);
    part.offset += part.length;
    part.column += part.length;
  }
  std::vector<ReferenceLogps> references;
  if (reference != nullptr) references = reference->read(document.index, sequences.size());
  row->add_unit({document.index, std::move(sequences), std::move(references)}, at.column);
  return num_trained;
}

// The notes that may explain why there are fewer tokens than the user expects; empty if nothing was noted.
std::string noted_text(const TokenStoreFacts& facts) {
  std::string text;
  const auto add = [&](std::string_view what, uint64_t times) {
    if (times > 0) text += fmt::format("{}{} ({})", text.empty() ? "; also noted: " : "; ", what, times);
  };
  add("rows without a token", facts.notes.num_empty_documents);
  for (const auto& [reason, rows] : facts.dropped) add(reason, rows);
  for (const auto& [what, times] : facts.notes.changes) add(what, times);
  return text;
}

}  // namespace

RowSource::RowSource(TokenStore store, const RowOptions& options, const DataSetConfig& config,
                     const std::function<void()>& poll)
    : RowSource(std::make_shared<const TokenStore>(std::move(store)), options, config, poll) {}

RowSource::RowSource(std::shared_ptr<const TokenStore> tokens, const RowOptions& options, const DataSetConfig& config,
                     const std::function<void()>& poll)
    : store_(std::move(tokens)),
      options_(options),
      config_(config),
      num_usable_documents_(store().num_documents()),
      num_usable_tokens_(store().facts().num_tokens) {
  CHASSIS_CHECK(options_.seq_len > 0, "seq_len is positive");
  CHASSIS_CHECK(options_.packing != Packing::kConcatSplit || !store().has_sequences(), "sequences are not split");
  const auto seq_len = static_cast<uint64_t>(options_.seq_len);
  if (options_.packing == Packing::kConcatSplit) {
    if (!options_.one_pass && store().facts().num_tokens < seq_len) {
      throw data_set_error(
          config_, fmt::format("the corpus is shorter than one sequence: {} has {} tokens, seq_len is {}", config_.path,
                               store().facts().num_tokens, seq_len) +
                       noted_text(store().facts()))
          .hint("use more text or a smaller train.seq_len");
    }
    return;
  }
  apply_overflow(poll);
  if (options_.packing == Packing::kBestFit) best_fit_.emplace(store(), options_, poll);
}

RowSource RowSource::once() const {
  RowOptions options = options_;
  options.one_pass = true;
  return {store_, options, config_, {}};
}

void RowSource::apply_overflow(const std::function<void()>& poll) {
  const auto seq_len = static_cast<uint64_t>(options_.seq_len);
  const TokenStore::LongDocuments longer = store().longer_than(seq_len, poll);
  num_long_documents_ = longer.count;
  if (longer.count == 0) return;
  if (options_.overflow == Overflow::kError) {
    throw Error(ExitCode::kConfig, store().origin(longer.first),
                fmt::format("the document has {} tokens, seq_len is {}; {} of {} documents are too long",
                            store().document(longer.first).length, seq_len, longer.count, store().num_documents()))
        .hint(store().has_sequences()
                  ? "raise train.seq_len, which holds all sequences of a row of the data, or set data.overflow to "
                    "\"drop\" or \"truncate_left_prompt\""
                  : "raise train.seq_len, or set data.overflow to \"truncate\" or \"drop\", or data.packing to "
                    "\"concat_split\"");
  }
  num_usable_tokens_ -= longer.num_tokens;
  if (!drops_long_documents(options_.overflow)) {
    num_usable_tokens_ += longer.count * seq_len;
    return;
  }
  num_usable_documents_ -= longer.count;
  if (num_usable_documents_ == 0) {
    throw data_set_error(config_, fmt::format("every document would be dropped: all {} of {} exceed seq_len {}",
                                              longer.count, config_.path, seq_len))
        .hint("raise train.seq_len");
  }
  const double part = static_cast<double>(longer.count) / static_cast<double>(store().num_documents());
  if (part > options_.max_drop_ratio) {
    throw Error(ExitCode::kConfig, store().origin(longer.first),
                fmt::format("{} of {} documents of {} ({:.1f} %) are longer than seq_len {} and would be dropped, the "
                            "first with {} tokens; data.max_drop_ratio is {:g}",
                            longer.count, store().num_documents(), config_.path, 100 * part, seq_len,
                            store().document(longer.first).length, options_.max_drop_ratio))
        .hint(fmt::format("raise train.seq_len, or set data.overflow to \"{}\", or raise data.max_drop_ratio",
                          to_text(store().has_sequences() ? Overflow::kTruncateLeftPrompt : Overflow::kTruncate)));
  }
}

double RowSource::num_rows() const {
  if (best_fit_) return static_cast<double>(best_fit_->num_rows());
  if (options_.packing == Packing::kNone) return static_cast<double>(num_usable_documents_);
  return static_cast<double>(store().facts().num_tokens) / static_cast<double>(options_.seq_len);
}

double RowSource::utilisation() const {
  return static_cast<double>(num_usable_tokens_) / (num_rows() * static_cast<double>(options_.seq_len));
}

double RowSource::num_passes(const SetCursor& cursor) const {
  const double size = best_fit_ ? num_rows() : static_cast<double>(store().num_documents());
  return static_cast<double>(cursor.epoch) + static_cast<double>(cursor.document) / size;
}

void RowSource::require_inside(const SetCursor& cursor) const {
  const uint64_t size = best_fit_ ? best_fit_->num_rows() : store().num_documents();
  if (cursor.document >= size) {
    throw data_set_error(config_, fmt::format("the saved position is {} {}, but {} has {}",
                                              best_fit_ ? "row" : "document", cursor.document, config_.path, size));
  }
  if (options_.packing != Packing::kConcatSplit && cursor.offset > 0) {
    throw data_set_error(
        config_,
        fmt::format("the saved position is inside a document (token {}), but packing \"{}\" uses whole documents",
                    cursor.offset, to_text(options_.packing)))
        .hint("resume with the packing that the run was started with");
  }
  if (best_fit_) return;
  if (const uint64_t length = next_document(cursor).length; cursor.offset >= length) {
    throw data_set_error(
        config_, fmt::format("the saved position is token {} of a document of {} tokens", cursor.offset, length));
  }
}

DocumentSpan RowSource::next_document(const SetCursor& cursor) const {
  if (!options_.shuffle) return store().document(cursor.document);
  const Permutation order(store().num_documents(), options_.seed, options_.stream, cursor.epoch);
  return store().document(order(cursor.document));
}

void RowSource::advance_document(SetCursor& cursor) const {
  cursor.offset = 0;
  if (++cursor.document == store().num_documents()) {
    cursor.document = 0;
    ++cursor.epoch;
  }
}

RowCounts RowSource::fill(SetCursor& cursor, BatchRow row) const {
  CHASSIS_CHECK(row.seq_len() == static_cast<size_t>(options_.seq_len), "rows of another length");
  return next(cursor, &row);
}

RowCounts RowSource::skip(SetCursor& cursor) const { return next(cursor, nullptr); }

RowCounts RowSource::next(SetCursor& cursor, BatchRow* row) const {
  ++cursor.num_rows;
  if (best_fit_) return next_best_fit(cursor, row);
  return options_.packing == Packing::kConcatSplit ? next_packed(cursor, row) : next_single(cursor, row);
}

RowCounts RowSource::next_packed(SetCursor& cursor, BatchRow* row) const {
  RowCounts counts;
  const auto seq_len = static_cast<size_t>(options_.seq_len);
  const uint64_t epoch = cursor.epoch;
  size_t column = 0;
  int32_t number = 0;
  while (column < seq_len) {
    if (options_.one_pass && cursor.epoch != epoch) break;
    const DocumentSpan document = next_document(cursor);
    const size_t length = static_cast<size_t>(std::min<uint64_t>(seq_len - column, document.length - cursor.offset));
    const Placement at{.offset = cursor.offset, .length = length, .end = document.length, .column = column};
    counts.num_trained_tokens += place_tokens(store(), reference_.get(), document, at, row, number);
    column += length;
    cursor.offset += length;
    if (cursor.offset == document.length) advance_document(cursor);
  }
  counts.num_tokens = column;
  return counts;
}

RowCounts RowSource::next_single(SetCursor& cursor, BatchRow* row) const {
  RowCounts counts;
  const auto seq_len = static_cast<size_t>(options_.seq_len);
  DocumentSpan document = next_document(cursor);
  while (document.length > seq_len && drops_long_documents(options_.overflow)) {
    ++counts.num_dropped_documents;
    advance_document(cursor);
    document = next_document(cursor);
  }
  if (document.length > seq_len) ++counts.num_truncated_documents;
  const uint64_t length = std::min(document.length, seq_len);
  int32_t number = 0;
  counts.num_trained_tokens = place_tokens(store(), reference_.get(), document,
                                           {.length = static_cast<size_t>(length), .end = length}, row, number);
  counts.num_tokens = length;
  advance_document(cursor);
  return counts;
}

RowCounts RowSource::next_best_fit(SetCursor& cursor, BatchRow* row) const {
  RowCounts counts;
  const auto seq_len = static_cast<size_t>(options_.seq_len);
  const BestFitRows::Row packed = best_fit_->row(store(), cursor.epoch, cursor.document);
  counts.num_dropped_documents = packed.num_dropped;
  size_t column = 0;
  int32_t number = 0;
  for (const DocumentSpan document : packed.documents) {
    if (document.length > seq_len) ++counts.num_truncated_documents;
    const size_t length = static_cast<size_t>(std::min<uint64_t>(document.length, seq_len));
    counts.num_trained_tokens += place_tokens(store(), reference_.get(), document,
                                              {.length = length, .end = length, .column = column}, row, number);
    column += length;
  }
  counts.num_tokens = column;
  if (++cursor.document == best_fit_->num_rows()) {
    cursor.document = 0;
    ++cursor.epoch;
  }
  return counts;
}

}  // namespace chassis
