// The first byte chooses how the rest is read: as a JSON row of one of the formats, or as a text file whose rows are
// then parsed as texts. Reading throws a config error or returns records that hold what their comments promise.
#include <simdjson.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>

#include "host/data/record_reader.hpp"
#include "host/data/wide_integers.hpp"

namespace {

using namespace chassis;

void require(bool holds) {
  if (!holds) std::abort();
}

void require_text(const std::string& text) { require(simdjson::validate_utf8(text.data(), text.size())); }

// simdjson, which this file also uses, has no integers above 64 bits either.
std::string with_marks(const std::string& json) {
  bool found = false;
  return mark_wide_integers(json, found);
}

void require_tool_calls(const std::string& json) {
  if (json.empty()) return;
  simdjson::dom::parser parser;
  simdjson::dom::array calls;
  require(!parser.parse(with_marks(json)).get(calls) && calls.size() > 0);
  for (const auto call : calls) {
    simdjson::dom::object arguments;
    std::string_view name;
    require(!call["function"]["arguments"].get(arguments) && !call["function"]["name"].get(name) && !name.empty());
  }
}

void check(const TextRecord& record) { require_text(record.text); }
void check(const SegmentsRecord& record) {
  for (const auto& segment : record.segments) require_text(segment.text);
}
void check(const TokensRecord& record) { require(record.labels.empty() || record.labels.size() == record.ids.size()); }
void check(const CompletionRecord& record) {
  require_text(record.prompt);
  require_text(record.completion);
}
void check(const ChatRecord& record) {
  for (const Message& message : record.messages) {
    require_text(message.role);
    require_text(message.text());
    require_text(message.reasoning);
    require(!message.role.empty() && (message.has_content || !message.tool_calls_json.empty()));
    require_tool_calls(message.tool_calls_json);
  }
  simdjson::dom::parser parser;
  require(record.tools_json.empty() || parser.parse(with_marks(record.tools_json)).is_array());
  require(!record.first_trained || *record.first_trained < record.messages.size());
}
void check_answer(const ChatRecord& record) {
  check(record);
  require(record.first_trained && *record.first_trained > 0);
}
void check(const PreferenceRecord& record) {
  check_answer(record.chosen);
  check_answer(record.rejected);
  require(record.chosen.first_trained == record.rejected.first_trained);
  require(!record.margin || std::isfinite(*record.margin));
}
void check(const LabelledRecord& record) { check_answer(record.answer); }
void check(const ClassifiedRecord& record) {
  std::visit([](const auto& input) { check(input); }, record.input);
  require(!record.targets.empty());
  for (const double target : record.targets) require(!std::isinf(target));
}
void check(const RolloutsRecord& record) {
  require(!record.rollouts.empty());
  for (const RolloutsRecord::Rollout& rollout : record.rollouts) {
    check_answer(rollout.answer);
    require(std::isfinite(rollout.reward));
    for (const double logp : rollout.logps) require(std::isfinite(logp));
  }
}

void check(const DistilledRecord& record) {
  if (const auto* chat = std::get_if<ChatRecord>(&record.answer)) check_answer(*chat);
  const TeacherFacts& teacher = record.teacher;
  require(std::accumulate(teacher.counts.begin(), teacher.counts.end(), size_t{0}) == teacher.ids.size());
  require(teacher.logps.size() == teacher.ids.size());
  for (const int32_t id : teacher.ids) require(id >= 0 && id < 1000);
  for (const float logp : teacher.logps) require(std::isfinite(logp) && logp < 0.01f);
}

struct Folder {
  Folder() {
    path = std::filesystem::temp_directory_path() / ("chassis-rows-fuzz-" + std::to_string(::getpid()));
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

constexpr std::array kFormats{DataFormat::kText,     DataFormat::kAlpaca,           DataFormat::kShareGpt,
                              DataFormat::kMessages, DataFormat::kPromptCompletion, DataFormat::kSegments,
                              DataFormat::kTokens,   DataFormat::kPreference,       DataFormat::kLabelled,
                              DataFormat::kRollouts, DataFormat::kClassification,   DataFormat::kDistillation};
constexpr std::array kNames{"a.jsonl", "a.json", "a.csv", "a.txt", "a.txt.gz", "a.txt.zst"};

void parse(RowParser& parser, const RawRow& row) {
  std::visit([](const auto& record) { check(record); }, parser.parse(row, "input"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  if (num_bytes == 0) return 0;
  const size_t kind = data[0] % (kFormats.size() + kNames.size());
  const std::string rest(reinterpret_cast<const char*>(data) + 1, num_bytes - 1);
  DataSetConfig config;
  try {
    if (kind < kFormats.size()) {
      config.format = kFormats[kind];
      RawRow row;
      row.bytes = rest;
      row.line = 1;
      row.is_table = data[0] >= 128;
      parse(*make_row_parser(config, 1000), row);
      return 0;
    }
    static const Folder folder;
    const std::string path = folder.path / kNames[kind - kFormats.size()];
    std::ofstream(path, std::ios::binary) << rest;
    const auto rows = open_rows(path, config);
    const auto parser = make_row_parser(config, 0);
    uint64_t last_line = 0;
    for (RawRow row; rows->next(row);) {
      require(row.line >= last_line && row.line > 0);
      require_text(row.bytes);
      last_line = row.line;
      if (row.kind == RowKind::kText) parse(*parser, row);
    }
    require(rows->num_bytes_read() == rest.size());
  } catch (const Error& error) {
    if (error.code() != ExitCode::kConfig) std::abort();
  }
  return 0;
}
