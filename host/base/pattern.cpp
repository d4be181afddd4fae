// PCRE2, with limits on patterns and searches.
#include "host/base/pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
constexpr uint32_t kMaxNesting = 250;  // levels of parentheses
// Limits of one search. A pattern without nested repetitions takes a few steps for each character of the subject.
constexpr uint32_t kMaxSteps = 1'000'000;
constexpr uint32_t kMatchDepth = 100'000;
constexpr uint32_t kMaxHeapKib = 65536;

template <class T>
using Handle = std::unique_ptr<T, void (*)(T*)>;

template <class T>
Handle<T> checked(T* raw, void (*release)(T*)) {
  if (raw == nullptr) throw std::bad_alloc();
  return {raw, release};
}

std::string error_text(int code) {
  PCRE2_UCHAR text[256];
  const int length = pcre2_get_error_message(code, text, sizeof text);
  return length < 0 ? "error " + std::to_string(code) : reinterpret_cast<const char*>(text);
}

const pcre2_code* code_of(const std::shared_ptr<void>& code) { return static_cast<const pcre2_code*>(code.get()); }

struct PatternMatch {
  Handle<pcre2_match_data> data;
  bool is_found = false;
};

PatternMatch search_for(const pcre2_code* code, const std::string& text, std::string_view subject) {
  const auto context = checked(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_depth_limit(context.get(), kMatchDepth);
  pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  PatternMatch match{checked(pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free)};
  const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), 0, 0,
                                match.data.get(), context.get());
  match.is_found = found >= 0;
  if (match.is_found || found == PCRE2_ERROR_NOMATCH) return match;
  throw config_error("the search for \"" + printable(text) + "\" in '" + printable(subject) +
                     "' was given up: " + error_text(found))
      .hint("nested repetitions, such as (a+)+, take time that doubles with each character");
}

}  // namespace

Pattern::Pattern(std::string text) : text_(std::move(text)) {
  const auto context = checked(pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_max_pattern_length(context.get(), kMaxPatternBytes);
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  int code = 0;
  PCRE2_SIZE offset = 0;
  const auto* bytes = reinterpret_cast<PCRE2_SPTR>(text_.data());
  // Names may come from a plugin and need not be UTF-8.
  pcre2_code* compiled =
      pcre2_compile(bytes, text_.size(), PCRE2_MATCH_INVALID_UTF | PCRE2_DOLLAR_ENDONLY, &code, &offset, context.get());
  if (compiled == nullptr) {
    throw config_error("\"" + printable(text_) + "\" is not a regular expression: " + error_text(code) +
                       " (at character " + std::to_string(offset + 1) + ")");
  }
  code_ = std::shared_ptr<void>(compiled, [](void* raw) { pcre2_code_free(static_cast<pcre2_code*>(raw)); });
}

bool Pattern::found_in(std::string_view subject) const { return search_for(code_of(code_), text_, subject).is_found; }

size_t Pattern::num_groups() const {
  uint32_t count = 0;
  pcre2_pattern_info(code_of(code_), PCRE2_INFO_CAPTURECOUNT, &count);
  return count;
}

std::optional<std::string> Pattern::first_group_in(std::string_view subject) const {
  CHASSIS_CHECK(num_groups() > 0, "a pattern without groups captures nothing");
  const PatternMatch match = search_for(code_of(code_), text_, subject);
  if (!match.is_found) return std::nullopt;
  // Begin and end of the match, then of each group; both are PCRE2_UNSET for a group that took no part.
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match.data.get());
  if (ends[2] == PCRE2_UNSET) return std::nullopt;
  return std::string(subject.substr(ends[2], ends[3] - ends[2]));
}

}  // namespace chassis
