// Encodes and decodes sample texts, alone, in batches, from several threads and with other instances.
#include "host/conformance/tokenizer_checks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"
#include "host/base/thread.hpp"
#include "host/conformance/growth.hpp"
#include "host/conformance/tokenizer_calls.hpp"
#include "host/conformance/tokenizer_samples.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

namespace calls = tokenizer_calls;
using calls::Refused;

constexpr int64_t kMaxExaminedIds = 4096;  // from each end of the vocabulary

class TokenizerExamination {
 public:
  TokenizerExamination(const TokenizerSubject& tokenizer, const TokenizerSubject& again,
                       const std::vector<TokenizerSubject>& variants)
      : tokenizer_(tokenizer), again_(again), variants_(variants) {}

  std::vector<std::string> run() {
    examine_info();
    if (!failures_.empty()) return failures_;
    for (const TextSample& sample : tokenizer_samples()) examine(sample);
    if (!failures_.empty()) return failures_;
    examine_safely("a batch", [&] { examine_batch(); });
    examine_safely("ids", [&] { examine_ids(); });
    examine_safely("special tokens", [&] { examine_special(); });
    examine_safely("flags", [&] { examine_flags(); });
    examine_threads();
    examine_safely("many calls", [&] { examine_many_calls(); });
    examine_safely("other instances", [&] { examine_other_instances(); });
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  template <class Body>
  void examine_safely(std::string_view what, Body&& body) {
    try {
      body();
    } catch (const Refused& refused) {
      fail("{}: {}", what, refused.text.empty() ? "refused without a message" : refused.text);
    }
  }

  static std::string fingerprint_of(const TokenizerSubject& subject) {
    return std::string(view_of(calls::info(subject).fingerprint));
  }

  void examine_info() {
    info_ = calls::info(tokenizer_);
    const chassis_tokenizer_info_t again = calls::info(tokenizer_);
    vocab_ = info_.vocab_size;
    if (vocab_ < 1 || vocab_ > std::numeric_limits<int32_t>::max())
      fail("its vocabulary has {} ids, expected at least 1 and at most {}", vocab_,
           std::numeric_limits<int32_t>::max());
    for (const auto& [name, id] : {std::pair("bos", info_.bos_id), std::pair("eos", info_.eos_id),
                                   std::pair("pad", info_.pad_id), std::pair("unk", info_.unk_id)})
      if (id < -1 || id >= vocab_) fail("its {} id is {}, expected -1 for none or an id below {}", name, id, vocab_);
    if ((info_.flags & CHASSIS_TOKENIZER_ADDS_BOS) && info_.bos_id < 0) fail("it adds a BOS, but has none");
    const bool says_trains = (info_.flags & CHASSIS_TOKENIZER_TRAINS) != 0, trains = tokenizer_.table->train != nullptr;
    if (says_trains != trains)
      fail("its flag TRAINS is {}, but the function train is {}", says_trains ? "set" : "not set",
           trains ? "offered" : "NULL");
    if (info_.chat_template.len > 0 && tokenizer_.table->render == nullptr)
      fail("it has a chat template, but the function render is NULL");
    if (view_of(info_.fingerprint).empty())
      fail("its fingerprint is empty: it would read the caches of other tokenizers");
    if (again.vocab_size != info_.vocab_size || view_of(again.fingerprint) != view_of(info_.fingerprint))
      fail("its description changes in a second call: {} ids and fingerprint '{}', then {} and '{}'", info_.vocab_size,
           printable(view_of(info_.fingerprint)), again.vocab_size, printable(view_of(again.fingerprint)));
  }

  void examine(const TextSample& sample) {
    try {
      examine_encoding(sample);
    } catch (const Refused& refused) {
      if (refused.is_failure)
        fail("{}: {}", sample.what, refused.text);
      else if (refused.text.empty())
        fail("{}: refused without a message", sample.what);
      else if (!sample.may_refuse)
        fail("{}: refused: {}", sample.what, refused.text);
      else if (refused.code != CHASSIS_INVALID_ARGUMENT)
        fail("{}: refused with {}, expected INVALID_ARGUMENT: {}", sample.what, status_code_text(refused.code),
             refused.text);
    }
  }

  void examine_encoding(const TextSample& sample) {
    const Encoding whole = calls::encode(tokenizer_, sample.text);
    const size_t num_bytes = sample.text.size();
    uint64_t before = 0;
    for (size_t i = 0; i < whole.ids.size(); ++i) {
      if (whole.ids[i] < 0 || whole.ids[i] >= vocab_)
        return fail("{}: id {} is {}, the vocabulary has {}", sample.what, i, whole.ids[i], vocab_);
      if (whole.end[i] < whole.begin[i] || whole.end[i] > num_bytes)
        return fail("{}: id {} covers bytes {} to {} of a text of {} bytes", sample.what, i, whole.begin[i],
                    whole.end[i], num_bytes);
      if (whole.begin[i] < before)
        return fail("{}: id {} begins at byte {}, the one before it at byte {}", sample.what, i, whole.begin[i],
                    before);
      before = whole.begin[i];
    }
    // If nothing is normalised, each byte belongs to an id, and two ids share at most one character.
    if (sample.round_trips || calls::decode(tokenizer_, whole.ids) == sample.text) examine_offsets(sample, whole);
    examine_decoding(sample, whole.ids);
  }

  void examine_offsets(const TextSample& sample, const Encoding& whole) {
    const auto continues = [&](uint64_t i) { return (static_cast<uint8_t>(sample.text[i]) & 0xC0) == 0x80; };
    uint64_t end = 0;
    for (size_t i = 0; i <= whole.ids.size(); ++i) {
      const uint64_t begin = i < whole.ids.size() ? whole.begin[i] : sample.text.size();
      for (uint64_t at = end; at < begin; ++at)
        if (std::isspace(static_cast<unsigned char>(sample.text[at])) == 0)
          return fail("{}: no id covers byte {} (offsets are counted in bytes, not in characters)", sample.what, at);
      if (i == whole.ids.size()) break;
      if (begin < end && whole.end[i] > begin) {
        const uint64_t shared = std::min(end, whole.end[i]);
        uint64_t next = begin + 1;
        while (next < shared && continues(next)) ++next;
        const bool is_ascii = static_cast<uint8_t>(sample.text[begin]) < 0x80;
        if (next < shared || is_ascii)
          return fail("{}: ids {} and {} both cover bytes {} to {}, which are not parts of one character", sample.what,
                      i - 1, i, begin, shared);
      }
      end = std::max(end, whole.end[i]);
    }
  }

  void examine_decoding(const TextSample& sample, const std::vector<int32_t>& ids) {
    const std::string once = calls::decode(tokenizer_, ids);
    if (sample.round_trips && once != sample.text)
      return fail("{}: '{}' is decoded as '{}'", sample.what, printable(sample.text), printable(once));
    if (const std::string twice = calls::decode(tokenizer_, calls::encode(tokenizer_, once).ids); twice != once)
      fail("{}: one round trip gives '{}', a second one '{}'", sample.what, printable(once), printable(twice));
  }

  void examine_batch() {
    std::vector<TextSample> accepted;
    std::vector<std::string> texts;
    std::vector<Encoding> alone;
    for (const TextSample& sample : tokenizer_samples()) {
      try {
        alone.push_back(calls::encode(tokenizer_, sample.text));
      } catch (const Refused&) {
        continue;
      }
      accepted.push_back(sample);
      texts.push_back(sample.text);
    }
    if (!calls::encode_batch(tokenizer_, {}, 0).empty()) fail("a batch of no texts: the sink is called");
    const std::vector<Encoding> batch = calls::encode_batch(tokenizer_, texts, CHASSIS_ENCODE_SPECIAL);
    for (size_t i = 0; i < accepted.size(); ++i)
      if (batch[i].ids != alone[i].ids || batch[i].begin != alone[i].begin || batch[i].end != alone[i].end)
        fail("{}: other ids or offsets in a batch of {} texts than alone", accepted[i].what, texts.size());
  }

  // The ids at both ends of the vocabulary, and those that the description names.
  std::vector<int32_t> examined_ids() const {
    std::vector<int32_t> ids;
    for (int64_t id = 0; id < vocab_; ++id) {
      if (id == kMaxExaminedIds) id = std::max(id, vocab_ - kMaxExaminedIds);
      ids.push_back(static_cast<int32_t>(id));
    }
    for (const int32_t id : {info_.bos_id, info_.eos_id, info_.pad_id, info_.unk_id})
      if (id >= 0) ids.push_back(id);
    return ids;
  }

  void examine_ids() {
    for (const int32_t id : examined_ids()) {
      const TokenText token = calls::token(tokenizer_, id);
      calls::decode(tokenizer_, {id}, CHASSIS_DECODE_KEEP_SPECIAL);
      if (token.special) special_.emplace(id, token);
      if (!is_utf8(token.text)) return fail("the text of id {} is not UTF-8: '{}'", id, printable(token.text));
      if (token.unused) continue;
      const int32_t found = calls::id_of(tokenizer_, token.text);
      if (found != id && (found < 0 || calls::token(tokenizer_, found).text != token.text))
        return fail("id {} is spelled '{}', which is found as id {}", id, printable(token.text), found);
    }
    if (const int32_t id = calls::id_of(tokenizer_, "\x01no such token\x01"); id != -1)
      fail("a text that no vocabulary spells has the id {}, expected -1", id);
    for (const int64_t id : {int64_t{-1}, vocab_, int64_t{std::numeric_limits<int32_t>::max()}}) {
      if (id >= 0 && id < vocab_) continue;
      const auto expect_refusal = [&](const char* what, auto&& call) {
        int32_t code = CHASSIS_OK;
        try {
          call(static_cast<int32_t>(id));
        } catch (const Refused& refused) {
          code = refused.code;
        }
        if (code != CHASSIS_OUT_OF_RANGE)
          fail("{} of id {} of a vocabulary of {} gives {}, expected OUT_OF_RANGE", what, id, vocab_,
               status_code_text(code));
      };
      expect_refusal("decode", [&](int32_t i) { calls::decode(tokenizer_, {i}); });
      expect_refusal("token", [&](int32_t i) { calls::token(tokenizer_, i); });
    }
  }

  // A special token that is not marked is decoded as text, and cannot be left out.
  void examine_special_flags() {
    for (const auto& [name, id] :
         {std::pair("bos", info_.bos_id), std::pair("eos", info_.eos_id), std::pair("pad", info_.pad_id)}) {
      if (id < 0) continue;
      const TokenText token = calls::token(tokenizer_, id);
      if (!token.special && !token.unused)
        fail("its {} id {}, '{}', does not have the flag CHASSIS_TOKEN_SPECIAL", name, id, printable(token.text));
    }
  }

  void examine_special() {
    examine_special_flags();
    const std::vector<int32_t> a = calls::encode(tokenizer_, "one two").ids, b = calls::encode(tokenizer_, " ten").ids;
    for (const auto& [id, token] : special_) {
      const std::string name = fmt::format("the special token '{}' ({})", printable(token.text), id);
      const std::string text = "a" + token.text + "b";
      const auto has = [&, id = id](uint32_t flags) {
        const std::vector<int32_t> ids = calls::encode(tokenizer_, text, flags).ids;
        return std::find(ids.begin(), ids.end(), id) != ids.end();
      };
      if (has(0)) fail("{} is found in a text, although it is not wanted", name);
      if (token.added && !has(CHASSIS_ENCODE_SPECIAL)) fail("{} is not found in '{}'", name, printable(text));
      std::vector<int32_t> without = a, with = a;
      with.push_back(id);
      without.insert(without.end(), b.begin(), b.end());
      with.insert(with.end(), b.begin(), b.end());
      if (const std::string left = calls::decode(tokenizer_, with), expected = calls::decode(tokenizer_, without);
          left != expected)
        fail("{} is decoded although it is not wanted: '{}', expected '{}'", name, printable(left),
             printable(expected));
      if (const std::string kept = calls::decode(tokenizer_, with, CHASSIS_DECODE_KEEP_SPECIAL);
          !token.text.empty() && kept.find(token.text) == std::string::npos)
        fail("{} is not decoded on request: '{}'", name, printable(kept));
      if (failures_.size() > 8) return;
    }
  }

  void examine_flags() {
    constexpr uint32_t kUnknown = 1u << 31;
    const auto expect_refusal = [&](const char* what, auto&& call) {
      try {
        call();
        fail("{} accepts the unknown flag {:#x}", what, kUnknown);
      } catch (const Refused&) {
      }
    };
    expect_refusal("encode", [&] { calls::encode(tokenizer_, "a", kUnknown); });
    expect_refusal("decode", [&] { calls::decode(tokenizer_, {}, kUnknown); });
  }

  void examine_threads() {
    const std::string text = tokenizer_samples().front().text;
    const std::vector<int32_t> expected = calls::encode(tokenizer_, text).ids;
    std::array<bool, 4> same{};
    std::vector<Thread> threads;
    threads.reserve(same.size());
    for (bool& mine : same)
      threads.emplace_back("test", [&, out = &mine] {
        try {
          *out = true;
          for (int i = 0; i < 50; ++i)
            *out =
                *out && calls::encode(tokenizer_, text).ids == expected && calls::decode(tokenizer_, expected) == text;
        } catch (...) {
          *out = false;
        }
      });
    for (Thread& thread : threads) thread.join();
    if (!std::all_of(same.begin(), same.end(), [](bool s) { return s; }))
      fail("calls from 4 threads at once give different ids or text");
  }

  void examine_many_calls() {
    constexpr int kNumCalls = 2000;
    const std::string text = tokenizer_samples().front().text;
    const std::vector<int32_t> expected = calls::encode(tokenizer_, text).ids;
    int num_calls = 0, first_wrong = 0;
    const std::string growth = growth_of("calls of encode", kNumCalls, [&] {
      ++num_calls;
      if (calls::encode(tokenizer_, text).ids != expected && first_wrong == 0) first_wrong = num_calls;
    });
    if (first_wrong != 0) fail("plain ASCII: other ids in call {} of encode than in the first one", first_wrong);
    if (!growth.empty()) fail("{}", growth);
  }

  // The first sample that gets different ids; none if all get the same.
  std::optional<std::string> difference(const TokenizerSubject& other) {
    std::vector<TextSample> samples = tokenizer_samples();
    std::vector<std::string> names;
    names.reserve(other.texts.size());
    for (const std::string& text : other.texts) {
      names.push_back("'" + printable(text, 80) + "'");
      samples.push_back({names.back().c_str(), text});
    }
    for (const TextSample& sample : samples) {
      const auto ids_of = [&](const TokenizerSubject& subject) {
        try {
          return calls::encode(subject, sample.text).ids;
        } catch (const Refused&) {
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
    for (const TokenizerSubject& variant : variants_)
      if (const auto text = difference(variant); text && fingerprint_of(variant) == fingerprint)
        fail("with {}, {} gets different ids, but the fingerprint is still '{}': it would read wrong caches",
             variant.options, *text, printable(fingerprint, 80));
  }

  const TokenizerSubject& tokenizer_;
  const TokenizerSubject& again_;
  const std::vector<TokenizerSubject>& variants_;
  chassis_tokenizer_info_t info_{};
  int64_t vocab_ = 0;
  std::map<int32_t, TokenText> special_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> tokenizer_failures(const TokenizerSubject& tokenizer, const TokenizerSubject& again,
                                            const std::vector<TokenizerSubject>& variants) {
  return TokenizerExamination(tokenizer, again, variants).run();
}

}  // namespace chassis
