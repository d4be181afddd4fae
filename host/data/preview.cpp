// Rows are parsed and encoded as in the preparation of the set, by one thread.
#include "host/data/preview.hpp"

#include <fmt/format.h>

#include <algorithm>
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

std::string sequence_name(const SequenceFacts& facts, size_t index, size_t num_sequences) {
  if (facts.role == SequenceRole::kChosen) return "chosen";
  if (facts.role == SequenceRole::kRejected) return "rejected";
  return num_sequences > 1 ? fmt::format("answer {}", index + 1) : "";
}

// Calls `show` for each sequence of a unit, as a document of its own.
void for_each_sequence(
    const Document& unit, const std::vector<size_t>& partly_inside,
    const std::function<void(const Document& part, const std::vector<size_t>& partly, const std::string& name)>& show) {
  size_t begin = 0;
  for (size_t i = 0; i < unit.sequences.size(); ++i) {
    const size_t end = begin + static_cast<size_t>(unit.sequences[i].length);
    const auto slice = [&](const std::vector<int32_t>& values) {
      return std::vector<int32_t>(values.begin() + static_cast<ptrdiff_t>(begin),
                                  values.begin() + static_cast<ptrdiff_t>(end));
    };
    Document part;
    part.ids = slice(unit.ids);
    part.labels = slice(unit.labels);
    std::vector<size_t> partly;
    for (const size_t at : partly_inside)
      if (at >= begin && at < end) partly.push_back(at - begin);
    show(part, partly, sequence_name(unit.sequences[i], i, unit.sequences.size()));
    begin = end;
  }
}

// The conversations and texts of a record that needs an objective, which can be shown without one. Empty for others.
std::vector<std::pair<std::string, Record>> parts_of(const Record& record) {
  std::vector<std::pair<std::string, Record>> parts;
  if (const auto* pair = std::get_if<PreferenceRecord>(&record)) {
    parts.emplace_back("chosen", pair->chosen);
    parts.emplace_back("rejected", pair->rejected);
  } else if (const auto* labelled = std::get_if<LabelledRecord>(&record)) {
    parts.emplace_back(labelled->is_good ? "good" : "bad", labelled->answer);
  } else if (const auto* classified = std::get_if<ClassifiedRecord>(&record)) {
    std::visit([&](const auto& input) { parts.emplace_back("", input); }, classified->input);
  } else if (const auto* rollouts = std::get_if<RolloutsRecord>(&record)) {
    for (size_t i = 0; i < rollouts->rollouts.size(); ++i)
      parts.emplace_back(fmt::format("answer {}", i + 1), rollouts->rollouts[i].answer);
  }
  return parts;
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
  const auto show_record = [&](const Record& record, PreviewRow row, const std::string& what) {
    Document document;
    row.what = what;
    if (!encoder.encode(record, line_position(row.file, row.line), document)) row.drop_reason = encoder.drop_reason();
    const bool must_fit = data.packing != Packing::kConcatSplit && data.overflow != Overflow::kTruncate;
    if (row.drop_reason.empty() && must_fit && document.ids.size() > static_cast<size_t>(data.seq_len))
      row.drop_reason = fmt::format("it has {} tokens, train.seq_len is {}", document.ids.size(), data.seq_len);
    row.changes = encoder.take_counts().changes();
    add_to(seen.changes, row.changes);
    if (document.sequences.empty()) {
      add_pieces(document, encoder.partly_inside(), texts, row);
      return show(row);
    }
    for_each_sequence(document, encoder.partly_inside(),
                      [&](const Document& part, const std::vector<size_t>& partly, const std::string& name) {
                        PreviewRow one = row;
                        one.what = name;
                        add_pieces(part, partly, texts, one);
                        show(one);
                        row.changes.clear();  // they are shown once
                      });
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
      const auto parts = data.sequences ? std::vector<std::pair<std::string, Record>>() : parts_of(record);
      for (const auto& [name, part] : parts) show_record(part, row, name);
      if (parts.empty()) show_record(record, row, "");
    }
  }
  return seen;
}

}  // namespace chassis
