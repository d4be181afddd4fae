// The conformance tests of tokenizers of the first version find each fault of a faulty tokenizer.
#include "host/conformance/tokenizer_1.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "host/plugin/status.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

// Ids are bytes. `fault` selects one fault.
class ToyTokenizer1 {
 public:
  explicit ToyTokenizer1(std::string fault = "") : fault_(std::move(fault)) {
    instance_.impl = this;
    table_.struct_size = sizeof table_;
    table_.info = [](chassis_instance* self, chassis_tokenizer_info_t* out) -> chassis_status_t* {
      ToyTokenizer1& toy = of(self);
      out->vocab_size = toy.is("no vocabulary") ? -1 : 256;
      out->eos_id = toy.is("eos outside") ? 256 : -1;
      out->fingerprint = str_of(toy.is("no fingerprint") ? std::string_view() : std::string_view(toy.fingerprint));
      return nullptr;
    };
    table_.encode = [](chassis_instance* self, chassis_str_t text, int32_t* ids, uint64_t* offsets, uint64_t capacity,
                       uint64_t* count) {
      return guarded([&] { of(self).encode(view_of(text), ids, offsets, capacity, *count); });
    };
    table_.decode = [](chassis_instance* self, const int32_t* ids, uint64_t num_ids, char* text, uint64_t capacity,
                       uint64_t* count) { return of(self).decode(ids, num_ids, text, capacity, *count); };
  }
  Tokenizer1Subject subject(const std::string& options = "") { return {&table_, &instance_, "toy", options}; }

  std::string fingerprint = "toy-1";
  int32_t shift = 0;

 private:
  static ToyTokenizer1& of(chassis_instance* self) { return *static_cast<ToyTokenizer1*>(self->impl); }
  bool is(std::string_view fault) const { return fault_ == fault; }

  void encode(std::string_view text, int32_t* ids, uint64_t* offsets, uint64_t capacity, uint64_t& count) const {
    count = text.size();
    if (is("counts more") && capacity == 0) ++count;
    const bool past_capacity = is("ignores capacity") && ids != nullptr && text.size() < 100;
    for (uint64_t i = 0; i < text.size() && (past_capacity || i < capacity); ++i) {
      ids[i] = (static_cast<unsigned char>(text[i]) + shift) % 256;
      if (is("id outside") && i == 3) ids[i] = 300;
      if (is("other ids without room") && capacity < text.size()) ids[i] = 0;
      if (offsets != nullptr) offsets[i] = is("offset outside") ? i + 1 : is("offset back") && i == 5 ? 0 : i;
    }
  }
  chassis_status_t* decode(const int32_t* ids, uint64_t num_ids, char* text, uint64_t capacity, uint64_t& count) const {
    if (is("refuses ids") && num_ids == 1 && ids[0] == 77) return make_status(CHASSIS_INTERNAL, "no text for id 77");
    for (uint64_t i = 0; i < num_ids; ++i)
      if ((ids[i] < 0 || ids[i] >= 256) && !is("any id")) return make_status(CHASSIS_OUT_OF_RANGE, "no such id");
    count = num_ids;
    for (uint64_t i = 0; i < num_ids && i < capacity; ++i) {
      text[i] = static_cast<char>((ids[i] - shift + 256) % 256);
      if (is("upper case")) text[i] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[i])));
      if (is("drifts") && static_cast<unsigned char>(text[i]) > 0x80) ++text[i];
    }
    return nullptr;
  }

  const std::string fault_;
  chassis_tokenizer_t table_{};
  chassis_instance_t instance_{};
};

std::string failures_of(const std::string& fault) {
  ToyTokenizer1 toy(fault), again(fault);
  std::string text;
  for (const std::string& failure : tokenizer_1_failures(toy.subject(), again.subject(), {})) text += failure + "\n";
  return text;
}

TEST(Tokenizer1Conformance, ACorrectTokenizerPasses) { EXPECT_EQ(failures_of(""), ""); }

TEST(Tokenizer1Conformance, FindsAnInvalidDescription) {
  EXPECT_HAS(failures_of("no vocabulary"), "its vocabulary has -1 ids, expected at least 1");
  EXPECT_HAS(failures_of("eos outside"), "its eos id is 256, expected -1 for none or an id below 256");
  EXPECT_HAS(failures_of("no fingerprint"), "its fingerprint is empty");
}

TEST(Tokenizer1Conformance, FindsWrongIdsAndOffsets) {
  EXPECT_HAS(failures_of("id outside"), "plain ASCII: id 3 is 300, the vocabulary has 256");
  EXPECT_HAS(failures_of("offset outside"), "one letter: id 0 starts at byte 1 of a text of 1 bytes");
  EXPECT_HAS(failures_of("offset back"), "plain ASCII: id 5 starts at byte 0, the one before it at byte 4");
  EXPECT_HAS(failures_of("counts more"), "without a buffer, ");
  EXPECT_HAS(failures_of("other ids without room"), "or the ids differ");
}

TEST(Tokenizer1Conformance, FindsTextThatChangesInARoundTrip) {
  EXPECT_HAS(failures_of("upper case"),
             "plain ASCII: 'The quick brown fox jumps over 13 lazy dogs.' is decoded as 'THE QUICK");
  EXPECT_HAS(failures_of("drifts"), "UTF-8: one round trip gives ");
  EXPECT_HAS(failures_of("refuses ids"), "an id of the vocabulary cannot be decoded: no text for id 77");
  EXPECT_HAS(failures_of("any id"), "decoding id -1 of a vocabulary of 256 gives OK, expected OUT_OF_RANGE");
}

TEST(Tokenizer1Conformance, FindsOneFingerprintForTwoTokenizers) {
  ToyTokenizer1 toy, again, shifted;
  shifted.shift = 1;
  const std::vector<Tokenizer1Subject> variants = {shifted.subject("shift = 1")};
  const auto found = tokenizer_1_failures(toy.subject(), again.subject(), variants);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_HAS(found[0], "with shift = 1, plain ASCII gets different ids, but the fingerprint is still 'toy-1'");
  shifted.fingerprint = "toy-1-shifted";
  EXPECT_EQ(tokenizer_1_failures(toy.subject(), again.subject(), {shifted.subject("shift = 1")}),
            std::vector<std::string>());
  EXPECT_HAS(tokenizer_1_failures(toy.subject(), shifted.subject(), {}).at(1),
             "a second instance has the fingerprint 'toy-1-shifted'");
}

}  // namespace
}  // namespace chassis
