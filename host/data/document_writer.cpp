// Documents with mismatches, which have become longer, and the answers of pairs are cut here and not by the encoder.
#include "host/data/document_writer.hpp"

#include <fmt/format.h>

#include <utility>

#include "host/data/line_reader.hpp"
#include "host/data/record_encoder.hpp"
#include "host/data/units.hpp"

namespace chassis {

DocumentWriter::DocumentWriter(const DataSetConfig& config, const std::vector<std::string>& files,
                               const DataConfig* data, TokenStoreWriter& writer)
    : files_(files), writer_(writer) {
  if (data == nullptr || !data->sequences) return;
  counts_classes_ = data->sequences->units == CHASSIS_OBJECTIVE_LABELLED;
  if (counts_classes_ && encode_options(*data).cuts_documents()) limit_ = static_cast<size_t>(data->seq_len);
  if (!data->sequences->mismatches) return;
  mismatches_.emplace(config, [this](Document&& document, size_t file) { write(std::move(document), file); });
}

void DocumentWriter::add(Document&& document, size_t file) {
  if (counts_classes_)
    for (const SequenceFacts& facts : document.sequences) ++(facts.targets.at(0) == 1 ? num_good_ : num_bad_);
  if (mismatches_)
    mismatches_->add(std::move(document), file);
  else
    write(std::move(document), file);
}

void DocumentWriter::write(Document&& document, size_t file) {
  if (!counts_classes_) return writer_.add(document, file);
  for (Document& unit : split_answers(std::move(document))) write_unit(std::move(unit), file);
}

void DocumentWriter::write_unit(Document&& document, size_t file) {
  if (limit_ > 0 && document.ids.size() > limit_) {
    if (!cut_prompts(document, limit_))
      return writer_.add_dropped(kNoPromptToCut, line_position(files_[file], document.line));
    ++num_cut_;
  }
  writer_.add(document, file);
}

void DocumentWriter::finish() {
  if (mismatches_) mismatches_->finish();
  EncodeCounts counts;
  counts.num_truncated = num_cut_;
  ReadNotes notes;
  notes.changes = counts.changes();
  if (counts_classes_ && (num_good_ == 0) != (num_bad_ == 0))
    notes.changes[fmt::format("all answers are {}, and none is {}: the objective needs both to compare",
                              num_bad_ == 0 ? "good" : "bad", num_bad_ == 0 ? "bad" : "good")] = num_good_ + num_bad_;
  writer_.add_notes(notes);
}

}  // namespace chassis
