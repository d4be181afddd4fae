// Rows are parsed and encoded as in the preparation of the set, by one thread.
#include "host/data/row_sample.hpp"

#include <algorithm>

#include "host/data/data_files.hpp"
#include "host/data/document.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/record_encoder.hpp"
#include "host/data/record_reader.hpp"

namespace chassis {

uint64_t RowSample::longest() const { return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()); }

uint64_t RowSample::num_longer_than(uint64_t limit) const {
  return static_cast<uint64_t>(
      std::count_if(lengths.begin(), lengths.end(), [&](uint64_t length) { return length > limit; }));
}

RowSample sample_rows(const DataSetConfig& set, const DataConfig& data, const Tokenizer* tokenizer,
                      const SampleLimits& limits) {
  const std::vector<std::string> files = data_files(set);
  RowSample sample;
  sample.num_files = files.size();
  RecordEncoder encoder(tokenizer, encode_options(data));
  const auto parser = make_row_parser(set, data.vocab_size);
  Document document;
  for (const std::string& file : files) {
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
      if (!encoder.encode(record, where, document)) {
        ++sample.dropped[encoder.drop_reason()];
        if (sample.first_dropped.empty()) sample.first_dropped = where.text();
        continue;
      }
      sample.lengths.push_back(document.ids.size());
      sample.num_tokens += document.ids.size();
    }
    if (sample.is_part) break;
  }
  sample.changes = encoder.counts().changes();
  return sample;
}

}  // namespace chassis
