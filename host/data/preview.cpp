// Rows are parsed and encoded as in the preparation of the set, by one thread.
#include "host/data/preview.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "host/data/data_files.hpp"
#include "host/data/document.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/record_encoder.hpp"
#include "host/data/record_reader.hpp"

namespace chassis {
namespace {

// Decodes ids one by one. A piece of text may depend on the id before it, such as the space in front of a word.
class IdTexts {
 public:
  explicit IdTexts(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  std::string text(const std::vector<int32_t>& ids, size_t begin, size_t end) const {
    if (tokenizer_ == nullptr) {
      std::string numbers;
      for (size_t i = begin; i < end; ++i) numbers += fmt::format("{} ", ids[i]);
      return numbers;
    }
    const size_t before = begin == 0 ? 0 : begin - 1;
    const std::string prefix = decoded(ids, before, begin), whole = decoded(ids, before, end);
    return whole.starts_with(prefix) ? whole.substr(prefix.size()) : decoded(ids, begin, end);
  }

 private:
  std::string decoded(const std::vector<int32_t>& ids, size_t begin, size_t end) const {
    return begin == end ? "" : tokenizer_->decode(std::span(ids).subspan(begin, end - begin), true);
  }

  const Tokenizer* tokenizer_;
};

TokenState state_of(const Document& document, const std::vector<size_t>& partly_inside, size_t i) {
  if (document.labels.empty() || document.labels[i] != kIgnoreLabel) return TokenState::kTrained;
  return std::binary_search(partly_inside.begin(), partly_inside.end(), i) ? TokenState::kPartlyInside
                                                                           : TokenState::kMasked;
}

void add_pieces(const Document& document, const std::vector<size_t>& partly_inside, const IdTexts& texts,
                PreviewRow& row) {
  row.num_tokens = document.ids.size();
  for (size_t i = 0; i < document.labels.size(); ++i)
    if (document.labels[i] != kIgnoreLabel && document.labels[i] != document.ids[i])
      row.other_labels.push_back({i, document.ids[i], document.labels[i]});
  row.has_shifted_labels = are_labels_shifted(document.ids, document.labels);
  for (size_t begin = 0; begin < document.ids.size();) {
    const TokenState state = state_of(document, partly_inside, begin);
    size_t end = begin + 1;
    while (end < document.ids.size() && state_of(document, partly_inside, end) == state) ++end;
    PreviewPiece& piece = row.pieces.emplace_back();
    piece.state = state;
    piece.text = texts.text(document.ids, begin, end);
    for (size_t i = begin; i < end; ++i) {
      piece.ids.push_back(document.ids[i]);
      piece.texts.push_back(texts.text(document.ids, i, i + 1));
    }
    // The first token of a row is not a target.
    if (state == TokenState::kTrained) row.num_trained_tokens += end - begin - (begin == 0);
    begin = end;
  }
}

// "0.5", "-" for none.
std::string target_text(double target) { return std::isnan(target) ? "-" : fmt::format("{:g}", target); }

std::string targets_text(const std::vector<double>& targets, const std::vector<std::string>& classes) {
  if (targets.size() == 1) {
    const double target = targets.front();
    const bool has_name = target >= 0 && target < static_cast<double>(classes.size());
    if (has_name) return fmt::format("class {:g} ({})", target, classes[static_cast<size_t>(target)]);
    return fmt::format("target {}", target_text(target));
  }
  std::string text;
  if (targets.size() != classes.size()) {
    for (const double target : targets) text += fmt::format("{}{}", text.empty() ? "" : ", ", target_text(target));
    return "targets " + text;
  }
  for (size_t i = 0; i < classes.size(); ++i)
    if (targets[i] > 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", classes[i]);
  return text.empty() ? "no class" : "classes " + text;
}

// Says which sequence of the record has this index, and how the data judge it.
void describe(const Record& record, size_t index, size_t num_sequences, const DataSetConfig& set, PreviewRow& row) {
  const bool is_whole = num_sequences == 0;  // the row was refused
  if (const auto* pair = std::get_if<PreferenceRecord>(&record)) {
    row.what = is_whole ? "pair" : index == 0 ? "chosen" : "rejected";
    row.margin = pair->margin;
    if (pair->margin) row.about = fmt::format("margin {:g}", *pair->margin);
  } else if (const auto* labelled = std::get_if<LabelledRecord>(&record)) {
    row.what = labelled->is_good ? "desirable" : "undesirable";
  } else if (const auto* classified = std::get_if<ClassifiedRecord>(&record)) {
    row.targets = classified->targets;
    row.about = targets_text(row.targets, set.classes);
  } else if (const auto* rollouts = std::get_if<RolloutsRecord>(&record)) {
    const auto& all = rollouts->rollouts;
    row.what = is_whole ? fmt::format("{} answers", all.size()) : fmt::format("answer {} of {}", index + 1, all.size());
    if (is_whole || index >= all.size()) return;
    row.targets = {all[index].reward};
    row.about = fmt::format("reward {:g}", all[index].reward);
  }
}

// The part of a document from a token on, as a document of its own.
struct SequencePart {
  Document document;
  std::vector<size_t> partly_inside;
};
SequencePart part_of(const Document& whole, const std::vector<size_t>& partly_inside, size_t begin, size_t length) {
  const size_t end = std::min(begin + length, whole.ids.size());
  SequencePart part;
  const auto slice = [&](const std::vector<int32_t>& from) {
    return std::vector<int32_t>(from.begin() + static_cast<ptrdiff_t>(begin),
                                from.begin() + static_cast<ptrdiff_t>(end));
  };
  part.document.ids = slice(whole.ids);
  if (!whole.labels.empty()) part.document.labels = slice(whole.labels);
  for (const size_t i : partly_inside)
    if (i >= begin && i < end) part.partly_inside.push_back(i - begin);
  return part;
}

// Shows the last token as the only trained one.
void mark_scored(SequencePart& part) {
  part.partly_inside.clear();
  part.document.labels.assign(part.document.ids.size(), kIgnoreLabel);
  if (!part.document.ids.empty()) part.document.labels.back() = part.document.ids.back();
}

void add_to(std::map<std::string, uint64_t>& sums, const std::map<std::string, uint64_t>& counts) {
  for (const auto& [what, times] : counts) sums[what] += times;
}

}  // namespace

PreviewOfSet preview_rows(const DataSetConfig& set, const DataConfig& data, const Tokenizer* tokenizer,
                          const PreviewLimits& limits, const std::function<void(const PreviewRow&)>& show) {
  const std::vector<std::string> files = data_files(set);
  PreviewOfSet seen{.num_files = files.size(), .is_sample = files.size() > limits.files};
  auto parser = make_row_parser(set, data.vocab_size);
  RecordEncoder encoder(tokenizer, encode_options(data));
  const IdTexts texts(tokenizer);
  const auto show_record = [&](const Record& record, PreviewRow row) {
    Document document;
    if (!encoder.encode(record, line_position(row.file, row.line), document)) row.drop_reason = encoder.drop_reason();
    const bool must_fit = data.packing != Packing::kConcatSplit && data.overflow != Overflow::kTruncate;
    if (row.drop_reason.empty() && must_fit && document.ids.size() > static_cast<size_t>(data.seq_len))
      row.drop_reason = fmt::format("it has {} tokens, train.seq_len is {}", document.ids.size(), data.seq_len);
    row.changes = encoder.take_counts().changes();
    add_to(seen.changes, row.changes);
    if (document.sequences.empty()) {
      describe(record, 0, 0, set, row);
      add_pieces(document, encoder.partly_inside(), texts, row);
      show(row);
      return;
    }
    size_t begin = 0;
    for (size_t i = 0; i < document.sequences.size(); ++i) {
      const auto length = static_cast<size_t>(document.sequences[i].length);
      SequencePart part = part_of(document, encoder.partly_inside(), begin, length);
      PreviewRow one = row;
      one.is_scored = data.sequences && data.sequences->scores;
      if (one.is_scored) mark_scored(part);
      describe(record, i, document.sequences.size(), set, one);
      add_pieces(part.document, part.partly_inside, texts, one);
      show(one);
      begin += length;
      row.changes.clear();  // they are those of the whole row
    }
  };
  for (size_t i = 0; i < std::min<size_t>(files.size(), limits.files); ++i) {
    const auto reader = open_rows(files[i], set);
    RawRow raw;
    uint64_t num_rows = 0;
    while (reader->next(raw)) {
      if (num_rows++ == limits.rows_of_file) {
        seen.is_sample = true;
        break;
      }
      const Record record = parser->parse(raw, files[i]);
      PreviewRow row;
      row.file = files[i];
      row.line = raw.line;
      row.unused_keys = parser->notes().unused_columns;
      add_to(seen.unused_keys, row.unused_keys);
      if (!row.unused_keys.empty()) parser = make_row_parser(set, data.vocab_size);  // resets the notes
      show_record(record, std::move(row));
    }
  }
  return seen;
}

}  // namespace chassis
