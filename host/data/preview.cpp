// Rows are parsed and encoded as in the preparation of the set, by one thread.
#include "host/data/preview.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>
#include <variant>

#include "host/data/data_files.hpp"
#include "host/data/document.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/mismatches.hpp"
#include "host/data/record_encoder.hpp"
#include "host/data/record_reader.hpp"
#include "host/data/units.hpp"

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

// Says how the data judge the sequence of the record that has this index.
void describe(const Record& record, size_t index, const DataSetConfig& set, PreviewRow& row) {
  if (const auto* pair = std::get_if<PreferenceRecord>(&record)) {
    row.what = index == 0 ? "chosen" : "rejected";
    row.margin = pair->margin;
    if (pair->margin) row.about = fmt::format("margin {:g}", *pair->margin);
  } else if (const auto* labelled = std::get_if<LabelledRecord>(&record)) {
    row.what = labelled->is_good ? "desirable" : "undesirable";
  } else if (const auto* classified = std::get_if<ClassifiedRecord>(&record)) {
    row.targets = classified->targets;
    row.about = targets_text(row.targets, set.classes);
  } else if (const auto* distilled = std::get_if<DistilledRecord>(&record)) {
    row.what = "answer";
    const TeacherFacts& teacher = distilled->teacher;
    row.about = fmt::format("a teacher's {} tokens at {} positions", teacher.ids.size(), teacher.counts.size());
  } else if (const auto* rollouts = std::get_if<RolloutsRecord>(&record)) {
    const auto& all = rollouts->rollouts;
    row.what = fmt::format("answer {} of {}", index + 1, all.size());
    if (index >= all.size()) return;
    row.targets = {all[index].reward};
    row.about = fmt::format("reward {:g}", all[index].reward);
  }
}

// Says what a record without sequences is, which was refused.
void describe_whole(const Record& record, const DataSetConfig& set, PreviewRow& row) {
  const auto* rollouts = std::get_if<RolloutsRecord>(&record);
  if (rollouts == nullptr) describe(record, 0, set, row);
  if (std::holds_alternative<PreferenceRecord>(record)) row.what = "pair";
  if (rollouts != nullptr) row.what = fmt::format("{} answers", rollouts->rollouts.size());
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

// Shows rows in their order. Those that need the answers of later rows wait for them.
class RowsInOrder {
 public:
  using Show = std::function<void(const PreviewRow&)>;

  RowsInOrder(const DataSetConfig& set, const DataConfig& data, const Tokenizer* tokenizer, const Show& show)
      : set_(set), data_(data), show_(show), encoder_(tokenizer, encode_options(data)), texts_(tokenizer) {
    const SequenceNeeds* needs = data.sequences ? &*data.sequences : nullptr;
    are_labelled_ = needs != nullptr && needs->units == CHASSIS_OBJECTIVE_LABELLED;
    if (are_labelled_ && encode_options(data).cuts_documents()) limit_ = static_cast<size_t>(data.seq_len);
    if (needs != nullptr && needs->mismatches)
      mismatches_.emplace(set, [this](Document&& document, size_t) { complete(std::move(document)); });
  }
  RowsInOrder(const RowsInOrder&) = delete;
  RowsInOrder& operator=(const RowsInOrder&) = delete;

  // Rows that are not shown only give their answers to others. Returns the changes of the row.
  std::map<std::string, uint64_t> add(Record record, PreviewRow row, bool is_shown) {
    Waiting& one = waiting_.emplace_back();
    const SourcePosition where = line_position(row.file, row.line);
    if (!encoder_.encode(record, where, one.document)) row.drop_reason = encoder_.drop_reason();
    row.changes = encoder_.take_counts().changes();
    std::map<std::string, uint64_t> changes = row.changes;
    one.partly_inside = encoder_.partly_inside();
    one.record = std::move(record);
    one.row = std::move(row);
    one.is_shown = is_shown;
    one.is_complete = !mismatches_ || !one.row.drop_reason.empty();
    if (!one.is_complete) mismatches_->add(Document(one.document), 0);
    show_complete();
    return changes;
  }
  // True if a row to be shown waits for the answer of a later one.
  bool waits() const {
    return std::ranges::any_of(waiting_, [](const Waiting& one) { return one.is_shown; });
  }
  void finish(bool is_sample) {
    if (mismatches_) mismatches_->finish(is_sample);
    show_complete();
  }

 private:
  struct Waiting {
    Record record;
    PreviewRow row;
    Document document;
    std::vector<size_t> partly_inside;
    bool is_shown = true, is_complete = true;
  };

  void complete(Document&& document) {
    const auto first = std::ranges::find(waiting_, false, &Waiting::is_complete);
    CHASSIS_CHECK(first != waiting_.end(), "documents come back in their order");
    first->document = std::move(document);
    first->is_complete = true;
  }

  void show_complete() {
    while (!waiting_.empty() && waiting_.front().is_complete) {
      Waiting one = std::move(waiting_.front());
      waiting_.pop_front();
      if (one.is_shown) show(std::move(one));
    }
  }

  void show(Waiting&& one) {
    if (one.document.sequences.empty()) {
      require_room(one.document, one.row);
      describe_whole(one.record, set_, one.row);
      add_pieces(one.document, one.partly_inside, texts_, one.row);
      return show_(one.row);
    }
    if (!are_labelled_) return show_unit(one, one.document, one.partly_inside, 0);
    size_t begin = 0, index = 0;
    for (Document& unit : split_answers(std::move(one.document))) {
      const size_t end = begin + static_cast<size_t>(unit.sequences.front().length);
      std::vector<size_t> partly_inside;
      for (const size_t i : one.partly_inside)
        if (i >= begin && i < end) partly_inside.push_back(i - begin);
      show_unit(one, unit, partly_inside, index++);
      begin = end;
    }
  }

  // `first` is the index of its first sequence in the record.
  void show_unit(Waiting& one, Document& unit, std::vector<size_t>& partly_inside, size_t first) {
    PreviewRow row = one.row;
    if (limit_ > 0 && row.drop_reason.empty() && unit.ids.size() > limit_) {
      partly_inside.clear();  // their places change
      EncodeCounts cut;
      cut.num_truncated = cut_prompts(unit, limit_) ? 1 : 0;
      if (cut.num_truncated == 0) row.drop_reason = kNoPromptToCut;
      add_to(row.changes, cut.changes());
    }
    require_room(unit, row);
    size_t begin = 0;
    for (size_t i = 0; i < unit.sequences.size(); ++i) {
      const auto length = static_cast<size_t>(unit.sequences[i].length);
      SequencePart part = part_of(unit, partly_inside, begin, length);
      PreviewRow shown = row;
      shown.is_scored = data_.sequences->scores;
      if (shown.is_scored) mark_scored(part);
      describe(one.record, first + i, set_, shown);
      if (are_labelled_) describe_labelled(unit.sequences[i], shown);
      add_pieces(part.document, part.partly_inside, texts_, shown);
      show_(shown);
      begin += length;
      row.changes.clear();  // they are those of the whole row
      one.row.changes.clear();
    }
  }

  static void describe_labelled(const SequenceFacts& facts, PreviewRow& row) {
    const bool is_mismatch = facts.role == SequenceRole::kMismatch;
    row.what = is_mismatch ? "mismatch" : facts.targets.at(0) == 1 ? "desirable" : "undesirable";
    if (is_mismatch) row.about = "with the answer to another prompt";
  }

  void require_room(const Document& document, PreviewRow& row) const {
    const bool must_fit = data_.packing != Packing::kConcatSplit && data_.overflow != Overflow::kTruncate;
    if (row.drop_reason.empty() && must_fit && document.ids.size() > static_cast<size_t>(data_.seq_len))
      row.drop_reason = fmt::format("it has {} tokens, train.seq_len is {}", document.ids.size(), data_.seq_len);
  }

  const DataSetConfig& set_;
  const DataConfig& data_;
  const Show& show_;
  RecordEncoder encoder_;
  IdTexts texts_;
  bool are_labelled_ = false;
  size_t limit_ = 0;  // tokens, to which labelled documents are cut; 0: they are not
  std::optional<Mismatches> mismatches_;
  std::deque<Waiting> waiting_;
};

}  // namespace

PreviewOfSet preview_rows(const DataSetConfig& set, const DataConfig& data, const Tokenizer* tokenizer,
                          const PreviewLimits& limits, const std::function<void(const PreviewRow&)>& show) {
  constexpr uint64_t kMaxRowsAhead = 1000;  // of a file, to find an answer to another prompt
  const std::vector<std::string> files = data_files(set);
  PreviewOfSet seen{.num_files = files.size(), .is_sample = files.size() > limits.files};
  auto parser = make_row_parser(set, data.vocab_size);
  RowsInOrder rows(set, data, tokenizer, show);
  for (size_t i = 0; i < std::min<size_t>(files.size(), limits.files); ++i) {
    const auto reader = open_rows(files[i], set);
    RawRow raw;
    uint64_t num_rows = 0;
    while (reader->next(raw)) {
      const bool is_shown = num_rows++ < limits.rows_of_file;
      if (!is_shown) seen.is_sample = true;
      if (!is_shown && (!rows.waits() || num_rows > limits.rows_of_file + kMaxRowsAhead)) break;
      Record record = parser->parse(raw, files[i]);
      PreviewRow row;
      row.file = files[i];
      row.line = raw.line;
      row.unused_keys = parser->notes().unused_columns;
      if (!row.unused_keys.empty()) parser = make_row_parser(set, data.vocab_size);  // resets the notes
      if (is_shown) add_to(seen.unused_keys, row.unused_keys);
      const std::map<std::string, uint64_t> changes = rows.add(std::move(record), std::move(row), is_shown);
      if (is_shown) add_to(seen.changes, changes);
    }
  }
  rows.finish(seen.is_sample);
  return seen;
}

}  // namespace chassis
