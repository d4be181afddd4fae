// Calls a tokenizer plugin and checks every result.
#include "host/session/plugin_tokenizer.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMostFingerprintBytes = 4096;
// Far more than any vocabulary needs. A larger count is an error of the plugin, and must not be allocated.
constexpr uint64_t kMostIdsPerByte = 16, kMostBytesPerId = 1 << 16;

}  // namespace

PluginTokenizer::PluginTokenizer(std::unique_ptr<Instance> instance)
    : instance_(std::move(instance)), table_(&instance_->interface<chassis_tokenizer_t>(CHASSIS_TOKENIZER_ID)) {
  instance_->require(CHASSIS_TOKENIZER_ID, {{"info", table_->info != nullptr},
                                            {"encode", table_->encode != nullptr},
                                            {"decode", table_->decode != nullptr}});
  info_.struct_size = sizeof(info_);
  info_.bos_id = info_.eos_id = info_.pad_id = -1;
  instance_->check(table_->info(instance_->get("info"), &info_));
  check_info();
  fingerprint_ = instance_->id() + ":" + std::string(view_of(info_.fingerprint));
}

void PluginTokenizer::check_info() const {
  const auto refuse = [&](const std::string& what) { return plugin_error(instance_->label() + ": " + what); };
  if (info_.vocab_size < 1 || info_.vocab_size > std::numeric_limits<int32_t>::max())
    throw refuse("its vocabulary has " + std::to_string(info_.vocab_size) + " ids, expected 1 to 2147483647");
  const std::pair<const char*, int32_t> specials[] = {
      {"bos_id", info_.bos_id}, {"eos_id", info_.eos_id}, {"pad_id", info_.pad_id}};
  for (const auto& [name, id] : specials)
    if (id < -1 || id >= info_.vocab_size)
      throw refuse(std::string(name) + " is " + std::to_string(id) + ", expected -1 (none) or an id below " +
                   std::to_string(info_.vocab_size));
  if (!info_.fingerprint.ptr || info_.fingerprint.len == 0)
    throw refuse("its fingerprint is empty, so its tokens cannot be distinguished from those of another tokenizer");
  if (info_.fingerprint.len > kMostFingerprintBytes)
    throw refuse("its fingerprint has " + std::to_string(info_.fingerprint.len) + " bytes, at most " +
                 std::to_string(kMostFingerprintBytes));
}

void PluginTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  const uint64_t most = kMostIdsPerByte * (text.size() + 1);
  ids.resize(text.size() + 16);
  uint64_t count = 0;
  const auto encode = [&] {
    const uint64_t room = ids.size();
    instance_->check(table_->encode(instance_->get("encode"), str_of(text), ids.data(), nullptr, room, &count));
    return count <= room;
  };
  if (!encode()) {
    const uint64_t announced = count;
    if (announced > std::max<uint64_t>(most, 16))
      throw plugin_error(instance_->label() + ": encode makes " + std::to_string(announced) + " ids of " +
                         std::to_string(text.size()) + " bytes, at most " + std::to_string(most));
    ids.resize(announced);
    if (!encode())
      throw plugin_error(instance_->label() + ": encode reports " + std::to_string(announced) + " ids, then " +
                         std::to_string(count) + " for the same text");
  }
  ids.resize(count);
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= info_.vocab_size)
      throw plugin_error(instance_->label() + ": encode makes id " + std::to_string(ids[i]) + " at place " +
                         std::to_string(i) + " of \"" + printable(text, 80) + "\"; its vocabulary has " +
                         std::to_string(info_.vocab_size) + " ids");
}

std::string PluginTokenizer::decode(std::span<const int32_t> ids, bool) const {
  std::string text(ids.size() * 8 + 16, '\0');
  uint64_t count = 0;
  const auto decode = [&] {
    const uint64_t room = text.size();
    instance_->check(table_->decode(instance_->get("decode"), ids.data(), ids.size(), text.data(), room, &count));
    return count <= room;
  };
  if (!decode()) {
    const uint64_t announced = count;
    if (announced > kMostBytesPerId * (ids.size() + 1))
      throw plugin_error(instance_->label() + ": decode makes " + std::to_string(announced) + " bytes of " +
                         std::to_string(ids.size()) + " ids, at most " +
                         std::to_string(kMostBytesPerId * (ids.size() + 1)));
    text.resize(announced);
    if (!decode())
      throw plugin_error(instance_->label() + ": decode reports " + std::to_string(announced) + " bytes, then " +
                         std::to_string(count) + " for the same ids");
  }
  text.resize(count);
  return text;
}

}  // namespace chassis
