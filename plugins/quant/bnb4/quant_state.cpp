// Reads and writes quant_state.
#include "quant_state.hpp"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "chassis/guard.hpp"
#include "nested.hpp"

namespace bnb4 {

using namespace chassis;

namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = 64 << 10, kMaxDims = 8;
constexpr int kMaxDepth = 2;
constexpr std::string_view kPlace = "quant_state: ";

template <typename... Parts>
[[noreturn]] void refuse_state(const Parts&... parts) {
  throw Failure(CHASSIS_DATA_LOSS, kPlace, parts...);
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  constexpr size_t kMost = 60;
  return text.size() > kMost ? text.substr(0, kMost) + "…" : text;
}

// Only the last part of a key of the outermost object counts: "weight.quant_state.shape" is "shape".
Json parsed(std::string_view text) {
  if (text.size() > kMaxBytes) refuse_state("it has ", text.size(), " bytes; the maximum is ", kMaxBytes);
  bool too_deep = false;
  std::set<std::string> keys;
  std::string twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    too_deep |= depth > kMaxDepth;
    if (event == Json::parse_event_t::key && depth == 1 && !keys.insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return !too_deep;
  };
  Json json = Json::parse(text.begin(), text.end(), watch, false);
  if (too_deep) refuse_state("its values are nested deeper than a list");
  if (json.is_discarded()) refuse_state("it is not JSON text");
  if (!json.is_object()) refuse_state("it is ", json.type_name(), ", expected an object");
  if (!twice.empty()) refuse_state("key ", shown(twice), " is there twice");
  Json out = Json::object();
  for (const auto& [key, value] : json.items()) {
    const std::string last = key.substr(key.rfind('.') == key.npos ? 0 : key.rfind('.') + 1);
    if (out.contains(last)) refuse_state("key ", shown(last), " is there twice");
    out[last] = value;
  }
  return out;
}

const Json& need(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) refuse_state("it has no key ", key);
  return *found;
}

int64_t integer(const Json& json, const char* key) {
  const Json& value = need(json, key);
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62))
    refuse_state(key, " is ", shown(value), ", expected a whole number");
  return value.get<int64_t>();
}

std::string word(const Json& json, const char* key) {
  const Json& value = need(json, key);
  if (!value.is_string()) refuse_state(key, " is ", shown(value), ", expected a text");
  return value.get<std::string>();
}

}  // namespace

std::string_view code_name(Code code) { return code == Code::kNf4 ? "nf4" : "fp4"; }

bool is_block_size(int64_t size) {
  return size >= kMinBlock && size <= kMaxBlock && std::has_single_bit(static_cast<uint64_t>(size));
}

QuantState parse_quant_state(std::string_view text) {
  const Json json = parsed(text);
  static const std::set<std::string> kKnown = {"quant_type",       "blocksize",    "dtype",        "shape",
                                               "nested_blocksize", "nested_dtype", "nested_offset"};
  for (const auto& [key, value] : json.items())
    if (!kKnown.contains(key)) refuse_state("unknown key ", shown(key));
  QuantState state;
  const std::string type = word(json, "quant_type");
  if (type != "nf4" && type != "fp4") refuse_state("quant_type is ", shown(type), ", expected \"nf4\" or \"fp4\"");
  state.code = type == "nf4" ? Code::kNf4 : Code::kFp4;
  state.block_size = integer(json, "blocksize");
  if (!is_block_size(state.block_size))
    refuse_state("blocksize is ", state.block_size, ", expected a power of 2 from 32 to 4096");
  state.dtype = word(json, "dtype");
  if (state.dtype != "bfloat16" && state.dtype != "float16" && state.dtype != "float32")
    refuse_state("dtype is ", shown(state.dtype), ", expected \"bfloat16\", \"float16\" or \"float32\"");
  const Json& shape = need(json, "shape");
  if (!shape.is_array() || shape.empty() || shape.size() > kMaxDims)
    refuse_state("shape is ", shown(shape), ", expected a list of 1 to ", kMaxDims, " sizes");
  int64_t elements = 1;
  for (const Json& size : shape) {
    if (!size.is_number_integer() || size < 0 || size > int64_t{1} << 40)
      refuse_state("shape is ", shown(shape), ", expected whole numbers from 0 to 2^40");
    state.shape.push_back(size.get<int64_t>());
    if (__builtin_mul_overflow(elements, state.shape.back(), &elements))
      refuse_state("shape is ", shown(shape), ", which has more than 2^63 elements");
  }
  int given = 0;
  for (const char* key : {"nested_blocksize", "nested_dtype", "nested_offset"}) given += json.contains(key) ? 1 : 0;
  if (given == 0) return state;
  state.is_nested = true;
  if (const int64_t block = integer(json, "nested_blocksize"); block != kNestedBlock)
    refuse_state("nested_blocksize is ", block, ", expected ", kNestedBlock);
  if (const std::string dtype = word(json, "nested_dtype"); dtype != "float32")
    refuse_state("nested_dtype is ", shown(dtype), ", expected \"float32\"");
  const Json& offset = need(json, "nested_offset");
  if (!offset.is_number()) refuse_state("nested_offset is ", shown(offset), ", expected a number");
  const double value = offset.get<double>();
  if (!std::isfinite(value) || std::abs(value) > static_cast<double>(std::numeric_limits<float>::max()))
    refuse_state("nested_offset is ", shown(offset), ", which is not a finite fp32 number");
  state.nested_offset = static_cast<float>(value);
  return state;
}

std::string python_float(double value) {
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific).ptr;
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  if (value == 0.0 || (exponent >= -4 && exponent < 16)) {
    char fixed[64];
    const auto stop = std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed).ptr;
    std::string out(fixed, stop);
    return out.find('.') == out.npos ? out + ".0" : out;
  }
  const std::string size = std::to_string(std::abs(exponent));
  return std::string(text.substr(0, e)) + (exponent < 0 ? "e-" : "e+") + (size.size() < 2 ? "0" : "") + size;
}

std::string quant_state_text(const QuantState& state) {
  std::string out = "{\"quant_type\": \"" + std::string(code_name(state.code)) +
                    "\", \"blocksize\": " + std::to_string(state.block_size) + ", \"dtype\": \"" + state.dtype +
                    "\", \"shape\": [";
  for (size_t i = 0; i < state.shape.size(); ++i) out += (i ? ", " : "") + std::to_string(state.shape[i]);
  out += "]";
  if (state.is_nested)
    out +=
        ", \"nested_blocksize\": " + std::to_string(kNestedBlock) +
        ", \"nested_dtype\": \"float32\", \"nested_offset\": " + python_float(static_cast<double>(state.nested_offset));
  return out + "}";
}

}  // namespace bnb4
