// Encodes and decodes sample texts with chassis.tokenizer/1, also with too small buffers, from several threads and with
// other instances.
#include "host/conformance/tokenizer_1.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"
#include "host/base/thread.hpp"
#include "host/conformance/tokenizer_samples.hpp"
#include "host/plugin/status.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

// Thrown when the tokenizer refuses a call, with its message, or answers it wrongly (`is_failure`).
struct Refused1 {
  std::string text;
  bool is_failure = false;
};

class Tokenizer1Examination {
 public:
  Tokenizer1Examination(const Tokenizer1Subject& tokenizer, const Tokenizer1Subject& again,
                        const std::vector<Tokenizer1Subject>& variants)
      : tokenizer_(tokenizer), again_(again), variants_(variants) {}

  std::vector<std::string> run() {
    examine_info();
    if (!failures_.empty()) return failures_;
    for (const TextSample& sample : tokenizer_samples()) examine(sample);
    if (failures_.empty()) {
      examine_ids();
      examine_threads();
      examine_other_instances();
    }
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  static chassis_tokenizer_info_t info_of(const Tokenizer1Subject& subject) {
    chassis_tokenizer_info_t info{};
    info.struct_size = sizeof info;
    info.bos_id = info.eos_id = info.pad_id = -1;
    throw_if_failed(subject.table->info(subject.self, &info), subject.label);
    return info;
  }
  static std::string fingerprint_of(const Tokenizer1Subject& subject) {
    return std::string(view_of(info_of(subject).fingerprint));
  }

  void examine_info() {
    const chassis_tokenizer_info_t info = info_of(tokenizer_), again = info_of(tokenizer_);
    vocab_ = info.vocab_size;
    if (vocab_ < 1 || vocab_ > std::numeric_limits<int32_t>::max())
      fail("its vocabulary has {} ids, expected at least 1 and at most {}", vocab_,
           std::numeric_limits<int32_t>::max());
    for (const auto& [name, id] :
         {std::pair("bos", info.bos_id), std::pair("eos", info.eos_id), std::pair("pad", info.pad_id)})
      if (id < -1 || id >= vocab_) fail("its {} id is {}, expected -1 for none or an id below {}", name, id, vocab_);
    if (view_of(info.fingerprint).empty())
      fail("its fingerprint is empty: it would read the caches of other tokenizers");
    if (again.vocab_size != info.vocab_size || view_of(again.fingerprint) != view_of(info.fingerprint))
      fail("its description changes in a second call: {} ids and fingerprint '{}', then {} and '{}'", info.vocab_size,
           printable(view_of(info.fingerprint)), again.vocab_size, printable(view_of(again.fingerprint)));
  }

  struct Encoded {
    std::vector<int32_t> ids;
    std::vector<uint64_t> offsets;
    uint64_t count = 0;
  };
  // Buffers have exactly `capacity` elements, so that guard pages can detect writes past the end.
  static Encoded encode_into(const Tokenizer1Subject& subject, const std::string& text, uint64_t capacity,
                             bool with_offsets) {
    const int64_t sizes[] = {static_cast<int64_t>(capacity)};
    const Tensor ids = Tensor::empty(sizes, Dtype::i32), offsets = Tensor::empty(sizes, Dtype::i64);
    Encoded out;
    chassis_status_t* status =
        subject.table->encode(subject.self, str_of(text), capacity ? ids.data_as<int32_t>() : nullptr,
                              capacity && with_offsets ? offsets.data_as<uint64_t>() : nullptr, capacity, &out.count);
    if (status != nullptr) {
      const Refused1 refused{status_text(status)};
      status_release(status);
      throw refused;
    }
    const uint64_t written = std::min(out.count, capacity);
    out.ids.assign(ids.data_as<int32_t>(), ids.data_as<int32_t>() + written);
    if (with_offsets) out.offsets.assign(offsets.data_as<uint64_t>(), offsets.data_as<uint64_t>() + written);
    return out;
  }
  static Encoded encode(const Tokenizer1Subject& subject, const std::string& text) {
    const uint64_t counted = encode_into(subject, text, 0, false).count;
    Encoded out = encode_into(subject, text, counted, true);
    if (out.count != counted)
      throw Refused1{fmt::format("the count is {} without a buffer, {} with a buffer of that size", counted, out.count),
                     true};
    return out;
  }
  static std::pair<std::string, uint64_t> decode_into(const Tokenizer1Subject& subject, const std::vector<int32_t>& ids,
                                                      uint64_t capacity) {
    const int64_t sizes[] = {static_cast<int64_t>(capacity)};
    const Tensor text = Tensor::empty(sizes, Dtype::u8);
    uint64_t count = 0;
    chassis_status_t* status = subject.table->decode(subject.self, ids.data(), ids.size(),
                                                     capacity ? text.data_as<char>() : nullptr, capacity, &count);
    if (status != nullptr) {
      const Refused1 refused{status_text(status)};
      status_release(status);
      throw refused;
    }
    return {std::string(text.data_as<char>(), std::min(count, capacity)), count};
  }
  static std::string decode(const Tokenizer1Subject& subject, const std::vector<int32_t>& ids) {
    const uint64_t counted = decode_into(subject, ids, 0).second;
    const auto [text, count] = decode_into(subject, ids, counted);
    if (count != counted)
      throw Refused1{fmt::format("the count is {} without a buffer, {} with a buffer of that size", counted, count),
                     true};
    return text;
  }

  void examine(const TextSample& sample) {
    try {
      examine_encoding(sample);
    } catch (const Refused1& refused) {
      if (refused.text.empty())
        fail("{}: refused without a message", sample.what);
      else if (refused.is_failure)
        fail("{}: {}", sample.what, refused.text);
      else if (!sample.may_refuse)
        fail("{}: refused: {}", sample.what, refused.text);
    }
  }

  void examine_encoding(const TextSample& sample) {
    const Encoded whole = encode(tokenizer_, sample.text);
    uint64_t before = 0;
    for (size_t i = 0; i < whole.ids.size(); ++i) {
      if (whole.ids[i] < 0 || whole.ids[i] >= vocab_)
        return fail("{}: id {} is {}, the vocabulary has {}", sample.what, i, whole.ids[i], vocab_);
      if (whole.offsets[i] >= sample.text.size())
        return fail("{}: id {} starts at byte {} of a text of {} bytes", sample.what, i, whole.offsets[i],
                    sample.text.size());
      if (whole.offsets[i] < before)
        return fail("{}: id {} starts at byte {}, the one before it at byte {}", sample.what, i, whole.offsets[i],
                    before);
      before = whole.offsets[i];
    }
    if (encode_into(tokenizer_, sample.text, whole.count, false).ids != whole.ids)
      fail("{}: ids differ when no offsets are requested", sample.what);
    const uint64_t half = whole.count / 2;
    const Encoded cut = encode_into(tokenizer_, sample.text, half, true);
    if (cut.count != whole.count || !std::equal(cut.ids.begin(), cut.ids.end(), whole.ids.begin()))
      fail("{}: with a buffer for {} of {} ids it counts {}, or the ids differ", sample.what, half, whole.count,
           cut.count);
    examine_decoding(sample, whole.ids);
  }

  void examine_decoding(const TextSample& sample, const std::vector<int32_t>& ids) {
    const std::string once = decode(tokenizer_, ids);
    if (sample.round_trips && once != sample.text)
      return fail("{}: '{}' is decoded as '{}'", sample.what, printable(sample.text), printable(once));
    const auto [cut, count] = decode_into(tokenizer_, ids, once.size() / 2);
    if (count != once.size() || cut != once.substr(0, once.size() / 2))
      fail("{}: with a buffer for {} of {} bytes it counts {}, or the text differs", sample.what, once.size() / 2,
           once.size(), count);
    if (const std::string twice = decode(tokenizer_, encode(tokenizer_, once).ids); twice != once)
      fail("{}: one round trip gives '{}', a second one '{}'", sample.what, printable(once), printable(twice));
  }

  void examine_ids() {
    constexpr int64_t kMaxIds = 4096;
    try {
      for (int64_t id = 0; id < std::min(vocab_, kMaxIds); ++id) decode(tokenizer_, {static_cast<int32_t>(id)});
      decode(tokenizer_, {static_cast<int32_t>(vocab_ - 1)});
    } catch (const Refused1& refused) {
      fail("an id of the vocabulary cannot be decoded: {}", refused.text);
    }
    for (const int64_t id : {int64_t{-1}, vocab_, int64_t{std::numeric_limits<int32_t>::max()}}) {
      if (id >= 0 && id < vocab_) continue;
      const std::vector<int32_t> ids = {static_cast<int32_t>(id)};
      uint64_t count = 0;
      chassis_status_t* status = tokenizer_.table->decode(tokenizer_.self, ids.data(), 1, nullptr, 0, &count);
      const int32_t code = status ? status_code(status) : CHASSIS_OK;
      status_release(status);
      if (code != CHASSIS_OUT_OF_RANGE)
        fail("decoding id {} of a vocabulary of {} gives {}, expected OUT_OF_RANGE", id, vocab_,
             status_code_text(code));
    }
  }

  void examine_threads() {
    const std::string text = tokenizer_samples().front().text;
    const std::vector<int32_t> expected = encode(tokenizer_, text).ids;
    std::array<bool, 4> same{};
    std::vector<Thread> threads;
    threads.reserve(same.size());
    for (bool& mine : same)
      threads.emplace_back("test", [&, out = &mine] {
        try {
          *out = true;
          for (int i = 0; i < 50; ++i)
            *out = *out && encode(tokenizer_, text).ids == expected && decode(tokenizer_, expected) == text;
        } catch (...) {
          *out = false;
        }
      });
    for (Thread& thread : threads) thread.join();
    if (!std::all_of(same.begin(), same.end(), [](bool s) { return s; }))
      fail("calls from 4 threads at once give different ids or text");
  }

  // The first sample that gets different ids; none if all get the same.
  std::optional<std::string> difference(const Tokenizer1Subject& other) {
    for (const TextSample& sample : tokenizer_samples()) {
      const auto ids_of = [&](const Tokenizer1Subject& subject) {
        try {
          return encode(subject, sample.text).ids;
        } catch (const Refused1&) {
          return std::vector<int32_t>{-1};
        }
      };
      if (ids_of(other) != ids_of(tokenizer_)) return sample.what;
    }
    return std::nullopt;
  }

  void examine_other_instances() {
    const std::string fingerprint = fingerprint_of(tokenizer_);
    if (const auto text = difference(again_)) fail("a second instance gives different ids for {}", *text);
    if (const std::string other = fingerprint_of(again_); other != fingerprint)
      fail("a second instance has the fingerprint '{}', the first one '{}'", printable(other), printable(fingerprint));
    for (const Tokenizer1Subject& variant : variants_)
      if (const auto text = difference(variant); text && fingerprint_of(variant) == fingerprint)
        fail("with {}, {} gets different ids, but the fingerprint is still '{}': it would read wrong caches",
             variant.options, *text, printable(fingerprint));
  }

  const Tokenizer1Subject& tokenizer_;
  const Tokenizer1Subject& again_;
  const std::vector<Tokenizer1Subject>& variants_;
  int64_t vocab_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> tokenizer_1_failures(const Tokenizer1Subject& tokenizer, const Tokenizer1Subject& again,
                                              const std::vector<Tokenizer1Subject>& variants) {
  return Tokenizer1Examination(tokenizer, again, variants).run();
}

}  // namespace chassis
