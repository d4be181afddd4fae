// The words of the data options.
#include "host/data/data_config.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace chassis {
namespace {

template <class T, size_t N>
using Words = std::array<std::pair<T, std::string_view>, N>;

constexpr Words<Packing, 2> kPackings{{{Packing::kConcatSplit, "concat_split"}, {Packing::kNone, "none"}}};
constexpr Words<Overflow, 3> kOverflows{
    {{Overflow::kError, "error"}, {Overflow::kTruncate, "truncate"}, {Overflow::kDrop, "drop"}}};
constexpr Words<DocumentSplit, 3> kSplits{
    {{DocumentSplit::kLine, "line"}, {DocumentSplit::kParagraph, "paragraph"}, {DocumentSplit::kFile, "file"}}};
constexpr Words<DataFormat, 2> kFormats{{{DataFormat::kText, "text"}, {DataFormat::kTokens, "tokens"}}};

template <class T, size_t N>
T parse(const Words<T, N>& words, std::string_view what, std::string_view text) {
  std::string known;
  for (const auto& [value, word] : words) {
    if (word == text) return value;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", word);
  }
  throw config_error(fmt::format("{} \"{}\" is none of {}", what, text, known));
}

template <class T, size_t N>
std::string_view word_of(const Words<T, N>& words, T value) {
  for (const auto& [known, word] : words) {
    if (known == value) return word;
  }
  throw internal_error("a data option without a word");
}

}  // namespace

Packing packing_from_text(std::string_view text) { return parse(kPackings, "packing", text); }
Overflow overflow_from_text(std::string_view text) { return parse(kOverflows, "overflow", text); }
DocumentSplit document_split_from_text(std::string_view text) { return parse(kSplits, "documents", text); }
DataFormat data_format_from_text(std::string_view text) { return parse(kFormats, "format", text); }
std::string_view to_text(Packing packing) { return word_of(kPackings, packing); }
std::string_view to_text(Overflow overflow) { return word_of(kOverflows, overflow); }
std::string_view to_text(DocumentSplit split) { return word_of(kSplits, split); }
std::string_view to_text(DataFormat format) { return word_of(kFormats, format); }

}  // namespace chassis
