// Calls the plugin with a buffer, and again with a larger one if it was too small.
#include "host/session/tokenizer_shim.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/session/tokenizer_limits.hpp"

namespace chassis {

chassis_tokenizer_info_2_t info_v1(const chassis_tokenizer_t& table, const Instance& instance) {
  chassis_tokenizer_info_t info{};
  info.struct_size = sizeof info;
  info.bos_id = info.eos_id = info.pad_id = -1;
  instance.call("info", [&](auto* self) { return table.info(self, &info); });
  const uint32_t flags = info.bos_id >= 0 ? CHASSIS_TOKENIZER_ADDS_BOS : 0;
  return {sizeof(chassis_tokenizer_info_2_t),
          flags,
          info.bos_id,
          info.eos_id,
          info.pad_id,
          -1,
          info.vocab_size,
          info.fingerprint,
          {}};
}

Encoding encode_v1(const chassis_tokenizer_t& table, const Instance& instance, std::string_view text) {
  Encoding out;
  uint64_t count = 0;
  const auto encode = [&](uint64_t room) {
    out.ids.resize(room);
    out.begin.resize(room);
    instance.call("encode", [&](auto* self) {
      return table.encode(self, str_of(text), out.ids.data(), out.begin.data(), room, &count);
    });
    return count <= room;
  };
  if (!encode(text.size() + 16)) {
    const uint64_t announced = count, most = max_num_ids(text.size());
    if (announced > most)
      throw plugin_error(instance.label() + ": encode makes " + std::to_string(announced) + " ids of " +
                         std::to_string(text.size()) + " bytes, at most " + std::to_string(most));
    if (!encode(announced))
      throw plugin_error(instance.label() + ": encode reports " + std::to_string(announced) + " ids, then " +
                         std::to_string(count) + " for the same text");
  }
  out.ids.resize(count);
  out.begin.resize(count);
  out.end.resize(count);
  uint64_t end = text.size();
  for (size_t i = count; i-- > 0;) {
    if (i + 1 < count && out.begin[i + 1] > out.begin[i]) end = out.begin[i + 1];
    out.end[i] = end;
  }
  return out;
}

std::string decode_v1(const chassis_tokenizer_t& table, const Instance& instance, std::span<const int32_t> ids) {
  std::string text;
  uint64_t count = 0;
  const auto decode = [&](uint64_t room) {
    text.resize(room);
    instance.call("decode",
                  [&](auto* self) { return table.decode(self, ids.data(), ids.size(), text.data(), room, &count); });
    return count <= room;
  };
  if (!decode(ids.size() * 8 + 16)) {
    const uint64_t announced = count, most = max_num_bytes(ids.size());
    if (announced > most)
      throw plugin_error(instance.label() + ": decode makes " + std::to_string(announced) + " bytes of " +
                         std::to_string(ids.size()) + " ids, at most " + std::to_string(most));
    if (!decode(announced))
      throw plugin_error(instance.label() + ": decode reports " + std::to_string(announced) + " bytes, then " +
                         std::to_string(count) + " for the same ids");
  }
  text.resize(count);
  return text;
}

}  // namespace chassis
