// Rows are parsed and encoded as in the preparation of the set, by one thread.
#include "host/data/row_sample.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "host/data/data_files.hpp"
#include "host/data/document.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/mismatches.hpp"
#include "host/data/record_encoder.hpp"
#include "host/data/record_reader.hpp"
#include "host/data/units.hpp"

namespace chassis {

uint64_t RowSample::longest() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }

uint64_t RowSample::num_longer_than(uint64_t limit) const {
  return static_cast<uint64_t>(
      std::count_if(lengths.begin(), lengths.end(), [&](uint64_t length) { return length > limit; }));
}

uint64_t RowSample::num_dropped() const {
  uint64_t sum = 0;
  for (const auto& [reason, documents] : dropped) sum += documents;
  return sum;
}

RowSample sample_rows(const DataSetConfig& set, const DataConfig& data, const Tokenizer* tokenizer,
                      const SampleLimits& limits) {
  const std::vector<std::string> files = data_files(set);
  RowSample sample;
  sample.num_files = files.size();
  RecordEncoder encoder(tokenizer, encode_options(data));
  const auto parser = make_row_parser(set, data.vocab_size);
  const bool are_labelled = data.sequences && data.sequences->units == CHASSIS_OBJECTIVE_LABELLED;
  const size_t limit = are_labelled && encode_options(data).cuts_documents() ? static_cast<size_t>(data.seq_len) : 0;
  EncodeCounts cut;
  const auto drop = [&](const std::string& reason, const SourcePosition& where) {
    ++sample.dropped[reason];
    if (sample.first_dropped.empty()) sample.first_dropped = where.text();
  };
  const auto take_unit = [&](Document& unit, size_t file) {
    if (limit > 0 && unit.ids.size() > limit) {
      if (!cut_prompts(unit, limit)) return drop(kNoPromptToCut, line_position(files[file], unit.line));
      ++cut.num_truncated;
    }
    sample.lengths.push_back(unit.ids.size());
    sample.num_tokens += unit.ids.size();
  };
  const auto take = [&](Document&& made, size_t file) {
    if (!are_labelled) return take_unit(made, file);
    for (Document& unit : split_answers(std::move(made))) take_unit(unit, file);
  };
  std::optional<Mismatches> mismatches;
  if (data.sequences && data.sequences->mismatches) mismatches.emplace(set, take);
  for (size_t i = 0; i < files.size() && !sample.is_part; ++i) {
    const std::string& file = files[i];
    const auto reader = open_rows(file, set);
    for (RawRow raw; reader->next(raw);) {
      if (sample.num_rows >= limits.rows || sample.num_tokens >= limits.tokens) {
        sample.is_part = true;
        break;
      }
      ++sample.num_rows;
      const SourcePosition where = line_position(file, raw.line);
      const Record record = parser->parse(raw, file);
      if (!limits.is_encoded) continue;
      Document document;
      document.line = raw.line;
      if (!encoder.encode(record, where, document))
        drop(encoder.drop_reason(), where);
      else if (mismatches)
        mismatches->add(std::move(document), i);
      else
        take(std::move(document), i);
    }
  }
  if (mismatches) mismatches->finish(sample.is_part);
  sample.changes = encoder.counts().changes();
  for (const auto& [what, times] : cut.changes()) sample.changes[what] += times;
  return sample;
}

}  // namespace chassis
