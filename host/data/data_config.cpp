// The names of the values of data options.
#include "host/data/data_config.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace chassis {
namespace {

template <class T, size_t N>
using Names = std::array<std::pair<T, std::string_view>, N>;

constexpr Names<Packing, 3> kPackings{
    {{Packing::kBestFit, "best_fit"}, {Packing::kConcatSplit, "concat_split"}, {Packing::kNone, "none"}}};
constexpr Names<Overflow, 4> kOverflows{{{Overflow::kError, "error"},
                                         {Overflow::kTruncate, "truncate"},
                                         {Overflow::kTruncateLeftPrompt, "truncate_left_prompt"},
                                         {Overflow::kDrop, "drop"}}};
constexpr Names<DocumentSplit, 3> kSplits{
    {{DocumentSplit::kLine, "line"}, {DocumentSplit::kParagraph, "paragraph"}, {DocumentSplit::kFile, "file"}}};
constexpr Names<DataFormat, 8> kFormats{{{DataFormat::kText, "text"},
                                         {DataFormat::kAlpaca, "alpaca"},
                                         {DataFormat::kShareGpt, "sharegpt"},
                                         {DataFormat::kMessages, "messages"},
                                         {DataFormat::kPromptCompletion, "prompt_completion"},
                                         {DataFormat::kSegments, "segments"},
                                         {DataFormat::kTokens, "tokens"},
                                         {DataFormat::kPreference, "preference"}}};
constexpr Names<Reasoning, 3> kReasonings{
    {{Reasoning::kTemplate, "template"}, {Reasoning::kKeep, "keep"}, {Reasoning::kStrip, "strip"}}};

template <class T, size_t N>
T parse(const Names<T, N>& names, std::string_view what, std::string_view text) {
  std::string known;
  for (const auto& [value, name] : names) {
    if (name == text) return value;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", name);
  }
  throw config_error(fmt::format("{} \"{}\" is not one of {}", what, text, known));
}

template <class T, size_t N>
std::string_view name_of(const Names<T, N>& names, T value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  throw internal_error("a value of a data option has no name");
}

}  // namespace

Packing packing_from_text(std::string_view text) { return parse(kPackings, "packing", text); }
Overflow overflow_from_text(std::string_view text) { return parse(kOverflows, "overflow", text); }
DocumentSplit document_split_from_text(std::string_view text) { return parse(kSplits, "documents", text); }
DataFormat data_format_from_text(std::string_view text) { return parse(kFormats, "format", text); }
Reasoning reasoning_from_text(std::string_view text) { return parse(kReasonings, "reasoning", text); }
std::string_view to_text(Packing packing) { return name_of(kPackings, packing); }
std::string_view to_text(Overflow overflow) { return name_of(kOverflows, overflow); }
std::string_view to_text(DocumentSplit split) { return name_of(kSplits, split); }
std::string_view to_text(DataFormat format) { return name_of(kFormats, format); }
std::string_view to_text(Reasoning reasoning) { return name_of(kReasonings, reasoning); }

}  // namespace chassis
