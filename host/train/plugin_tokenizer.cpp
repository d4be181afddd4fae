#include "host/train/plugin_tokenizer.hpp"

#include "host/plugin/status.hpp"

namespace chassis {

PluginTokenizer::PluginTokenizer(std::unique_ptr<Instance> instance)
    : instance_(std::move(instance)), table_(&instance_->interface<chassis_tokenizer_t>(CHASSIS_TOKENIZER_ID)) {
  info_.struct_size = sizeof(info_);
  info_.bos_id = info_.eos_id = info_.pad_id = -1;
  instance_->check(table_->info(instance_->get(), &info_));
  fingerprint_ = instance_->id() + ":" + std::string(view_of(info_.fingerprint));
}

void PluginTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  uint64_t count = 0;
  ids.resize(text.size() + 16);
  instance_->check(table_->encode(instance_->get(), str_of(text), ids.data(), nullptr, ids.size(), &count));
  if (count > ids.size()) {
    ids.resize(count);
    instance_->check(table_->encode(instance_->get(), str_of(text), ids.data(), nullptr, ids.size(), &count));
  }
  ids.resize(count);
}

std::string PluginTokenizer::decode(std::span<const int32_t> ids) const {
  uint64_t count = 0;
  std::string text(ids.size() * 8 + 16, '\0');
  instance_->check(table_->decode(instance_->get(), ids.data(), ids.size(), text.data(), text.size(), &count));
  if (count > text.size()) {
    text.resize(count);
    instance_->check(table_->decode(instance_->get(), ids.data(), ids.size(), text.data(), text.size(), &count));
  }
  text.resize(count);
  return text;
}

}  // namespace chassis
