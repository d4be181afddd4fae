// Names, regular expressions and ranges of layers.
#include "targets.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <new>

#include "chassis/guard.hpp"

namespace lora {

using chassis::fail_invalid;

namespace {

constexpr size_t kMaxPatternBytes = 1024;
constexpr uint32_t kMaxNesting = 100;  // of parentheses
// Limits of one search. A pattern without nested repetitions takes a few steps for each character of a name.
constexpr uint32_t kMaxSteps = 1'000'000;
constexpr uint32_t kMaxDepth = 100'000;
constexpr uint32_t kMaxHeapKib = 65536;

template <class T>
std::unique_ptr<T, void (*)(T*)> checked(T* raw, void (*release)(T*)) {
  if (raw == nullptr) throw std::bad_alloc();
  return {raw, release};
}

std::string error_text(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof text) < 0 ? "error " + std::to_string(code)
                                                              : reinterpret_cast<const char*>(text);
}

bool ends_in_name(std::string_view module, std::string_view name) {
  return module == name ||
         (module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
}

int64_t index_of(std::string_view text, const std::string& whole) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    fail_invalid("\"", whole, "\": '", std::string(text), "' is not an index; write ranges such as \"0:16\"");
  return value;
}

}  // namespace

NameRegex::NameRegex(const std::string& text, const std::string& expression) : text_(text) {
  if (text.empty()) fail_invalid("an empty name matches nothing");
  if (text.size() > kMaxPatternBytes)
    fail_invalid("a pattern of ", text.size(), " bytes; the maximum is ", kMaxPatternBytes);
  const auto context = checked(pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_MATCH_INVALID_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &offset, context.get());
  if (compiled == nullptr)
    fail_invalid("'", text, "' is not a regular expression: ", error_text(code),
                 text.starts_with('*') ? "; the * of a file pattern is written .* here" : "");
  code_ = std::shared_ptr<void>(compiled, [](void* raw) { pcre2_code_free(static_cast<pcre2_code*>(raw)); });
}

bool NameRegex::matches(std::string_view module) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const auto context = checked(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_depth_limit(context.get(), kMaxDepth);
  pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  const auto data = checked(pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  const int found =
      pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(), 0, 0, data.get(), context.get());
  if (found < 0 && found != PCRE2_ERROR_NOMATCH)
    fail_invalid("the search for '", text_, "' in '", std::string(module), "' was given up: ", error_text(found),
                 "; nested repetitions, such as (a+)+, take time that doubles with each character");
  return found >= 0;
}

NamePattern::NamePattern(const std::string& text)
    : NamePattern(text, text, text.find_first_of("^$*+?()[]{}|\\") != std::string::npos ? Rule::kRegex : Rule::kName) {}

NamePattern NamePattern::ending(const std::string& text) { return {text, text.empty() ? "" : "x", Rule::kEnding}; }

bool NamePattern::matches(std::string_view module) const {
  if (rule_ == Rule::kRegex) return regex_.matches(module);
  if (rule_ == Rule::kName) return ends_in_name(module, text());
  for (size_t end = module.size();; end = module.rfind('.', end - 1)) {
    if (module.substr(0, end).ends_with(text())) return true;
    if (module.substr(0, end).find('.') == std::string_view::npos) return false;
  }
}

EndPattern::EndPattern(const std::string& text) : regex_(text, "(.*\\.)?(" + text + ")") {}

LayerRanges::LayerRanges(const std::string& text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view part = std::string_view(text).substr(begin, end - begin);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    const size_t colon = part.find(':');
    const int64_t first = index_of(part.substr(0, colon), text);
    const int64_t last = colon == std::string_view::npos ? first + 1 : index_of(part.substr(colon + 1), text);
    if (last <= first) fail_invalid("\"", text, "\": ", first, ":", last, " is empty");
    ranges_.emplace_back(first, last);
    begin = end + 1;
  }
}

LayerRanges::LayerRanges(const std::vector<int64_t>& layers) {
  for (int64_t layer : layers) {
    if (layer < 0) fail_invalid("layers_to_transform has ", layer, ", expected 0 or more");
    ranges_.emplace_back(layer, layer + 1);
  }
}

bool LayerRanges::contains(int64_t layer) const {
  return is_all() || std::any_of(ranges_.begin(), ranges_.end(),
                                 [&](const auto& r) { return layer >= r.first && layer < r.second; });
}

int64_t LayerRanges::last() const {
  int64_t last = -1;
  for (const auto& [begin, end] : ranges_) last = std::max(last, end - 1);
  return last;
}

}  // namespace lora
