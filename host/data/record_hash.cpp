// Chains the hashes of all texts, each with its length and its place in the record.
#include "host/data/record_hash.hpp"

#include <string_view>
#include <type_traits>

#include "host/base/hash.hpp"
#include "host/data/permutation.hpp"

namespace chassis {
namespace {

class ContentHash {
 public:
  void add(std::string_view text) { hash_ = hash64(text, mix64(hash_ + text.size())); }
  void add(uint64_t number) { hash_ = mix64(hash_ ^ number); }
  void add(const std::vector<int32_t>& ids) {
    add(std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)));
  }
  void add(const std::optional<bool>& train) { add(uint64_t{train ? 1u + *train : 0u}); }

  void add(const Message& message) {
    add(message.role);
    add(message.content.size());
    for (const ContentPart& part : message.content) add(part.text), add(part.train);
    for (const std::string* text :
         {&message.reasoning, &message.tool_calls_json, &message.tool_call_id, &message.name}) {
      add(*text);
    }
    add(message.train);
  }
  void add(const ChatRecord& chat) {
    add(chat.messages.size());
    for (const Message& message : chat.messages) add(message);
    add(chat.tools_json);
    add(chat.first_trained ? *chat.first_trained + 1 : uint64_t{0});
  }

  void add(const TextRecord& record) { add(record.text); }
  void add(const SegmentsRecord& record) {
    for (const SegmentsRecord::Segment& segment : record.segments) add(segment.text), add(uint64_t{segment.trained});
  }
  void add(const TokensRecord& record) { add(record.ids), add(record.labels); }
  void add(const CompletionRecord& record) { add(record.prompt), add(record.completion); }
  void add(const PreferenceRecord& record) { add(record.chosen), add(record.rejected); }
  // Without labels, classes, rewards and teachers: equal texts are in one part, even if they are judged differently.
  void add(const LabelledRecord& record) { add(record.answer); }
  void add(const ClassifiedRecord& record) {
    std::visit([&](const auto& input) { add(input); }, record.input);
  }
  void add(const RolloutsRecord& record) {
    for (const RolloutsRecord::Rollout& rollout : record.rollouts) add(rollout.answer);
  }
  void add(const DistilledRecord& record) {
    std::visit([&](const auto& answer) { add(answer); }, record.answer);
  }

  uint64_t value() const { return mix64(hash_); }

 private:
  uint64_t hash_ = 0;
};

}  // namespace

uint64_t content_hash(const Record& record) {
  ContentHash hash;
  hash.add(uint64_t{record.index()});
  std::visit([&](const auto& content) { hash.add(content); }, record);
  return hash.value();
}

double content_fraction(const Record& record) { return static_cast<double>(content_hash(record) >> 11) * 0x1p-53; }

}  // namespace chassis
