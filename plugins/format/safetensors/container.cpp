// Parses and writes safetensors headers.
#include "container.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "chassis/tensor.h"

namespace safetensors {
namespace {

struct TypeFacts {
  std::string_view name;
  uint32_t bits;
  uint32_t abi;
};

constexpr std::array<TypeFacts, kNumTypes> kTypes = {{
    {"BOOL", 8, CHASSIS_DTYPE_BOOL},
    {"F4", 4, 0},
    {"F6_E2M3", 6, 0},
    {"F6_E3M2", 6, 0},
    {"U8", 8, CHASSIS_DTYPE_U8},
    {"I8", 8, CHASSIS_DTYPE_I8},
    {"F8_E5M2", 8, 0},
    {"F8_E4M3", 8, 0},
    {"F8_E8M0", 8, 0},
    {"F8_E4M3FNUZ", 8, 0},
    {"F8_E5M2FNUZ", 8, 0},
    {"I16", 16, CHASSIS_DTYPE_I16},
    {"U16", 16, 0},
    {"F16", 16, CHASSIS_DTYPE_F16},
    {"BF16", 16, CHASSIS_DTYPE_BF16},
    {"I32", 32, CHASSIS_DTYPE_I32},
    {"U32", 32, 0},
    {"F32", 32, CHASSIS_DTYPE_F32},
    {"C64", 64, 0},
    {"F64", 64, CHASSIS_DTYPE_F64},
    {"I64", 64, CHASSIS_DTYPE_I64},
    {"U64", 64, 0},
}};

const TypeFacts& facts(Type type) { return kTypes[static_cast<size_t>(type)]; }

std::optional<Type> type_from_name(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == name) return static_cast<Type>(i);
  return std::nullopt;
}

// A name for a message: short, and without control characters.
std::string shown(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 80)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return out + (text.size() > 80 ? "…'" : "'");
}

std::string number(uint64_t value) { return std::to_string(value); }

}  // namespace

std::string_view type_name(Type type) { return facts(type).name; }
uint32_t type_bits(Type type) { return facts(type).bits; }
uint32_t abi_dtype(Type type) { return facts(type).abi; }

Type type_from_abi(uint32_t abi_dtype) {
  for (size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].abi != 0 && kTypes[i].abi == abi_dtype) return static_cast<Type>(i);
  throw Defect("dtype " + number(abi_dtype) + " has no name in safetensors");
}

void check_tensor_name(std::string_view name) {
  if (name.empty()) throw Defect("a tensor has no name");
  if (name == "__metadata__") throw Defect("a tensor is called '__metadata__'");
  if (!is_utf8(name)) throw Defect("the name " + shown(name) + " is not UTF-8");
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      throw Defect("the name " + shown(name) + " has a control character");
    }
  }
  if (name.front() == '/' || name == ".." || name.find("../") != name.npos || name.find("..\\") != name.npos) {
    throw Defect("the name " + shown(name) + " looks like a path");
  }
}

Header Header::parse(std::string json, uint64_t data_bytes) {
  if (json.size() > kMaxHeaderBytes) {
    throw Defect("the header has " + number(json.size()) + " bytes, at most " + number(kMaxHeaderBytes) +
                 " are allowed");
  }
  if (json.empty() || json.front() != '{') throw Defect("the header does not begin with '{'");

  Header header;
  header.json_ = std::move(json);
  JsonReader reader(header.json_);
  reader.expect('{', "at the start");
  bool has_metadata = false;
  if (!reader.consume('}')) {
    do {
      const std::string_view name = reader.string("a tensor's name");
      reader.expect(':', "after a name");
      if (name == "__metadata__") {
        if (has_metadata) throw Defect("duplicate key '__metadata__'");
        has_metadata = true;
        header.parse_metadata(reader);
        continue;
      }
      check_tensor_name(name);
      Entry entry;
      entry.name_begin = static_cast<uint32_t>(reader.offset_of(name));
      entry.name_bytes = static_cast<uint32_t>(name.size());
      header.parse_entry(reader, entry);
      header.entries_.push_back(entry);
    } while (reader.consume(','));
    reader.expect('}', "after the last tensor");
  }
  reader.finish();
  header.check_names();
  header.check_offsets(data_bytes);
  return header;
}

void Header::parse_metadata(JsonReader& json) {
  json.expect('{', "at the start of __metadata__");
  if (json.consume('}')) return;
  do {
    const std::string_view key = json.string("a key of __metadata__");
    json.expect(':', "after a key");
    const std::string_view value = json.string("__metadata__ holds strings only");
    if (metadata_.size() == kMaxMetadata) throw Defect("__metadata__ has more than " + number(kMaxMetadata) + " keys");
    metadata_.push_back({static_cast<uint32_t>(json.offset_of(key)), static_cast<uint32_t>(key.size()),
                         static_cast<uint32_t>(json.offset_of(value)), static_cast<uint32_t>(value.size())});
  } while (json.consume(','));
  json.expect('}', "after __metadata__");
  std::vector<std::string_view> keys;
  for (const Pair& pair : metadata_) keys.push_back(text_at(pair.key_begin, pair.key_bytes));
  std::sort(keys.begin(), keys.end());
  if (const auto twin = std::adjacent_find(keys.begin(), keys.end()); twin != keys.end()) {
    throw Defect("__metadata__ has the key " + shown(*twin) + " twice");
  }
}

void Header::parse_entry(JsonReader& json, Entry& entry) {
  const std::string_view name = text_at(entry.name_begin, entry.name_bytes);
  bool has_type = false, has_shape = false, has_offsets = false;
  uint64_t num_elements = 0;
  json.expect('{', "at the start of a tensor");
  do {
    const std::string_view key = json.string("a tensor's key");
    json.expect(':', "after a key");
    const auto once = [&](bool& seen) {
      if (seen) throw Defect("tensor " + shown(name) + " has the key " + shown(key) + " twice");
      seen = true;
    };
    if (key == "dtype") {
      once(has_type);
      const std::string_view text = json.string("a dtype");
      const auto type = type_from_name(text);
      if (!type) throw Defect("tensor " + shown(name) + " has the unknown dtype " + shown(text));
      entry.type = static_cast<uint8_t>(*type);
    } else if (key == "shape") {
      once(has_shape);
      num_elements = parse_shape(json, entry);
    } else if (key == "data_offsets") {
      once(has_offsets);
      json.expect('[', "at the start of data_offsets");
      entry.begin = json.unsigned_integer("an offset");
      json.expect(',', "between two offsets");
      entry.end = json.unsigned_integer("an offset");
      json.expect(']', "after two offsets");
    } else {
      throw Defect("tensor " + shown(name) + " has the unknown key " + shown(key));
    }
  } while (json.consume(','));
  json.expect('}', "after a tensor");
  if (!has_type || !has_shape || !has_offsets) {
    throw Defect("tensor " + shown(name) + " lacks " + (!has_type ? "dtype" : !has_shape ? "shape" : "data_offsets"));
  }

  uint64_t num_bits = 0;
  const Type type = static_cast<Type>(entry.type);
  if (__builtin_mul_overflow(num_elements, uint64_t{type_bits(type)}, &num_bits)) {
    throw Defect("tensor " + shown(name) + ": its size overflows");
  }
  if (num_bits % 8 != 0) throw Defect("tensor " + shown(name) + " does not end at a byte boundary");
  if (entry.end < entry.begin || entry.end - entry.begin != num_bits / 8) {
    throw Defect("tensor " + shown(name) + " has data_offsets [" + number(entry.begin) + ", " + number(entry.end) +
                 "], but its shape and dtype take " + number(num_bits / 8) + " bytes");
  }
}

// Returns the number of elements.
uint64_t Header::parse_shape(JsonReader& json, Entry& entry) {
  json.expect('[', "at the start of a shape");
  entry.shape_begin = static_cast<uint32_t>(json.position());
  uint64_t num_elements = 1;
  if (json.consume(']')) return num_elements;
  do {
    const uint64_t size = json.unsigned_integer("a dim of a shape");
    if (entry.num_dims == kMaxDims) throw Defect("a tensor has more than " + number(kMaxDims) + " dims");
    ++entry.num_dims;
    if (size > static_cast<uint64_t>(INT64_MAX) || __builtin_mul_overflow(num_elements, size, &num_elements)) {
      throw Defect("tensor " + shown(text_at(entry.name_begin, entry.name_bytes)) + ": its shape overflows");
    }
  } while (json.consume(','));
  json.expect(']', "after a shape");
  return num_elements;
}

void Header::check_names() {
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(), [&](uint32_t a, uint32_t b) { return name(a) < name(b); });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    if (name(by_name_[i - 1]) == name(by_name_[i]))
      throw Defect("tensor " + shown(name(by_name_[i])) + " appears twice");
  }
}

void Header::check_offsets(uint64_t data_bytes) const {
  std::vector<uint32_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(entries_[a].begin, entries_[a].end) < std::pair(entries_[b].begin, entries_[b].end);
  });
  uint64_t at = 0;
  for (const uint32_t i : order) {
    if (entries_[i].begin != at) {
      throw Defect("tensor " + shown(name(i)) + " starts at byte " + number(entries_[i].begin) +
                   (entries_[i].begin < at ? ", inside the one before it" : ", after a gap") + " (expected " +
                   number(at) + ")");
    }
    at = entries_[i].end;
  }
  if (at != data_bytes) {
    throw Defect("the tensors take " + number(at) + " bytes, the file has " + number(data_bytes) + " after the header" +
                 (at > data_bytes ? ": it is cut short" : ": there are trailing bytes"));
  }
}

std::vector<int64_t> Header::shape(size_t i) const {
  const Entry& entry = entries_[i];
  std::vector<int64_t> sizes;
  sizes.reserve(entry.num_dims);
  const char* at = json_.data() + entry.shape_begin;
  for (int dim = 0; dim < entry.num_dims; ++dim) {
    while (*at < '0' || *at > '9') ++at;
    int64_t size = 0;
    for (; *at >= '0' && *at <= '9'; ++at) size = size * 10 + (*at - '0');
    sizes.push_back(size);
  }
  return sizes;
}

size_t Header::find(std::string_view wanted) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), wanted,
                                   [&](uint32_t i, std::string_view text) { return name(i) < text; });
  return it != by_name_.end() && name(*it) == wanted ? *it : size();
}

Metadata Header::metadata() const {
  Metadata out;
  for (const Pair& pair : metadata_) {
    out.emplace_back(text_at(pair.key_begin, pair.key_bytes), text_at(pair.value_begin, pair.value_bytes));
  }
  return out;
}

std::string_view Header::metadata_value(std::string_view key) const {
  for (const Pair& pair : metadata_)
    if (text_at(pair.key_begin, pair.key_bytes) == key) return text_at(pair.value_begin, pair.value_bytes);
  return {};
}

void append_json_string(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kHex[static_cast<unsigned char>(c) >> 4];
          out += kHex[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

std::string header_bytes(std::span<const NewTensor> tensors, const Metadata& metadata) {
  std::string out(8, '\0');
  out += '{';
  if (!metadata.empty()) {
    out += "\"__metadata__\":{";
    for (size_t i = 0; i < metadata.size(); ++i) {
      if (i > 0) out += ',';
      if (!is_utf8(metadata[i].first) || !is_utf8(metadata[i].second)) throw Defect("metadata is not UTF-8");
      append_json_string(out, metadata[i].first);
      out += ':';
      append_json_string(out, metadata[i].second);
    }
    out += '}';
  }
  uint64_t at = 0;
  for (const NewTensor& tensor : tensors) {
    check_tensor_name(tensor.name);
    if (out.size() > 9) out += ',';
    append_json_string(out, tensor.name);
    out += ":{\"dtype\":\"";
    out += type_name(tensor.type);
    out += "\",\"shape\":[";
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      if (dim > 0) out += ',';
      out += std::to_string(tensor.shape[dim]);
    }
    out += "],\"data_offsets\":[" + number(at) + ',';
    at += tensor.num_bytes;
    out += number(at) + "]}";
  }
  out += '}';
  out.resize((out.size() + 7) / 8 * 8, ' ');
  uint64_t num_bytes = out.size() - 8;
  if (num_bytes > kMaxHeaderBytes) {
    throw Defect("the header would have " + number(num_bytes) + " bytes, at most " + number(kMaxHeaderBytes) +
                 " are allowed");
  }
  for (int i = 0; i < 8; ++i, num_bytes >>= 8) out[static_cast<size_t>(i)] = static_cast<char>(num_bytes & 0xFF);
  return out;
}

}  // namespace safetensors
